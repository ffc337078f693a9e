// One worker's standard output or error on its way from the pipe to file, console, filtered file and tail.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "logs/console.hpp"
#include "logs/line_assembler.hpp"
#include "logs/log_pump.hpp"
#include "logs/output_file.hpp"

namespace ddp::launcher {

// How a worker's line looks on the console: behind a prefix, which may be coloured, or as JSON.

/// The forms of one stream's lines.
class LineFormat {
 public:
  LineFormat(const LogPumpOptions& options, const StreamRoute& route);

  bool json() const { return json_; }
  /// Whether progress bars are rewritten in place.
  bool in_place() const { return in_place_; }
  std::string prefix(std::chrono::system_clock::time_point time) const { return timestamp(time) + prefix_; }
  /// In the rank's colour, where the options ask for it.
  std::string console_prefix(std::chrono::system_clock::time_point time) const {
    return timestamp(time) + console_prefix_;
  }

  /// {"time":"2026-01-31T12:00:00.000000Z","host","rank","local_rank","stream","line"}, without a newline; times are
  /// UTC. Bytes that are no UTF-8 become U+FFFD. All but the last piece of a too long line have "partial":true.
  std::string json_line(const LinePiece& piece, std::chrono::system_clock::time_point time) const;

 private:
  /// "2026-01-31T12:00:00.000Z ", UTC, where the options ask for it.
  std::string timestamp(std::chrono::system_clock::time_point time) const;

  bool json_;
  bool in_place_;
  bool timestamps_;
  std::string prefix_;
  std::string console_prefix_;
  std::string json_facts_;  ///< what is the same in all lines: ,"host":...,"line":
};

// Keeps the last lines that a rank wrote, for the report of its failure.

/// Thread-safe.
class TailBuffer {
 public:
  TailBuffer(int max_lines, std::size_t max_bytes) : max_lines_(max_lines), max_bytes_(max_bytes) {}

  void append(std::string_view bytes);

  /// At most the limits' lines and bytes, with the last newline if any. A progress bar is shortened to its last state.
  /// A cut falls between lines, or between characters of a single line that is too long.
  std::string text() const;

 private:
  const int max_lines_;
  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::string kept_;  ///< more than text() returns, which shortens progress bars
};

/// Where a stream's bytes go, each may be missing. All but `file` are shared with other streams.
struct StreamTargets {
  std::optional<OutputFile> file;
  Console* console = nullptr;
  bool of_job = false;  ///< it is the job's
  OutputFile* filtered_file = nullptr;
  const std::vector<std::string>* filters = nullptr;
  std::shared_ptr<TailBuffer> tail;
};

/// Not thread-safe, but for the tail.
class LogStream {
 public:
  using Clock = Deadline::Clock;
  /// How long an unprefixed console waits for the end of an unfinished line.
  static constexpr std::chrono::milliseconds kUnfinishedLineWait{100};
  /// The same where a full pipe cut the write: the rest is sure to come. And for the job's console, where a line that
  /// several nodes' ranks tear is worse than one that comes late.
  static constexpr std::chrono::milliseconds kCutWriteWait{2000};
  /// Between two states of a progress bar on a prefixed console that is a terminal, and on another.
  static constexpr std::chrono::milliseconds kBarInterval{100};
  static constexpr std::chrono::milliseconds kBarLineInterval{10'000};

  /// @param pipe the reading end, non-blocking
  LogStream(base::UniqueFd pipe, const StreamRoute& route, StreamTargets targets, LineFormat format);
  LogStream& operator=(LogStream&&) = delete;

  /// Reads once into @p buffer and hands on what there is. @return bytes read; nothing at the end of the pipe.
  std::optional<std::size_t> read(std::span<char> buffer);
  /// Bytes that are in the pipe now.
  std::size_t pending_bytes() const;

  /// When show_unfinished() is to be called; nothing: no line waits.
  std::optional<Clock::time_point> unfinished_due() const { return due_; }
  /// Restarts the wait: the rest of the line may be unread in the pipe.
  void put_off_unfinished() { due_ = Clock::now() + kUnfinishedLineWait; }
  /// Hands an unfinished line to an unprefixed console, the newest state of a progress bar to a prefixed one.
  void show_unfinished();

  /// Writes the unfinished lines and closes file and pipe.
  void close();
  /// Closes the pipe: its writer gets EPIPE.
  void abandon() noexcept { pipe_.reset(); }
  bool open() const { return static_cast<bool>(pipe_); }

  int fd() const { return pipe_.get(); }
  int local_rank() const { return local_rank_; }
  bool has_tail() const { return targets_.tail != nullptr; }
  Console* console() const { return targets_.console; }

 private:
  void take(std::string_view bytes);
  void pass_on(std::string_view bytes);
  void take_lines(std::span<const LinePiece> pieces);
  void show(const LinePiece& piece, std::chrono::system_clock::time_point time);
  void follow_bar();
  void filter(const LinePiece& piece, std::chrono::system_clock::time_point time);

  base::UniqueFd pipe_;
  int local_rank_;
  bool prefixed_;
  StreamTargets targets_;
  LineFormat format_;
  LineAssembler lines_;
  std::string unfinished_;     ///< of an unprefixed console
  bool progress_bar_ = false;  ///< the unfinished line contains "\r": it is shown at once
  std::string bar_;            ///< of a prefixed console: the newest state of the progress bar; empty: there is none
  bool bar_shown_ = false;     ///< it is what the console shows
  Clock::time_point bar_at_ = Clock::now() - kBarLineInterval;  ///< when one was shown last
  std::optional<Clock::time_point> due_;
};

}  // namespace ddp::launcher
