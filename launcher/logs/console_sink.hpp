// A standard stream of this process as a console: never blocking, whatever the descriptor is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "logs/console.hpp"
#include "logs/output_file.hpp"

namespace ddp::launcher {

/// A queue in front of a descriptor that other processes share: its O_NONBLOCK is left alone.
class ConsoleSink : public Console {
 public:
  /// On a terminal, one rank's progress bar is shown at a time: another's takes its place after this pause.
  static constexpr std::chrono::milliseconds kBarPause{2000};

  /// @param fd not owned; may be closed. @param name "standard output"
  ConsoleSink(int fd, std::string name, OutputFile::Complaint complaint);
  /// Whether both descriptors refer to the same file, pipe, socket or terminal: then one sink must serve both, or lines
  /// would be torn.
  static bool same_target(int one, int other);

  void append(const void* owner, std::string_view bytes) override;
  /// On a terminal, a line that is overwritten takes the place of the last one of its kind.
  void append_line(const void* owner, std::string_view prefix, const LinePiece& piece) override;

  /// Writes what the descriptor takes now.
  void flush() override;
  bool ready() const override { return !idle() && !awaited(); }
  std::size_t queued() const override { return queue_.size() - head_; }
  /// Nothing: flush() need not be called before the next append().
  std::optional<int> awaited() const override;

  void abandon() override;
  /// Notes the bytes missing in a console that is a file, and releases the console.
  void close() override;
  std::uint64_t taken_bytes() const override { return taken_bytes_; }
  std::uint64_t abandoned_bytes() const override { return abandoned_bytes_; }

 private:
  enum class Kind { file, socket, own, shared };
  void detect(int fd, OutputFile::Complaint complaint);
  void push(std::string_view bytes);
  void show_bar(const void* owner, std::string_view prefix, std::string_view text);
  void remove_bar();
  long write_some(std::string_view bytes);

  Kind kind_ = Kind::shared;
  int fd_;
  bool terminal_ = false;
  base::UniqueFd own_fd_;           ///< Kind::own: the same pipe or terminal, opened anew without blocking
  std::size_t chunk_bytes_ = 0;     ///< the most that is written at once
  std::optional<OutputFile> file_;  ///< Kind::file
  std::string queue_;
  std::size_t head_ = 0;  ///< start of what is left of queue_
  bool gone_ = false;
  bool blocked_ = false;  ///< it took nothing last time
  bool abandoned_ = false;
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t abandoned_bytes_ = 0;
  const void* owner_ = nullptr;  ///< the last writer
  bool line_open_ = false;       ///< the last write did not end a line
  bool open_prefixed_ = false;   ///< and it has a prefix
  bool bar_shown_ = false;       ///< the terminal's last line is a progress bar
  const void* bar_owner_ = nullptr;
  std::chrono::steady_clock::time_point bar_at_{};
};

}  // namespace ddp::launcher
