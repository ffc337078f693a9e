// The console of a job: lines of all ranks, in order and without tearing, here or from other nodes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/connection.hpp"
#include "control/messages.hpp"
#include "logs/line_assembler.hpp"
#include "logs/output_file.hpp"

namespace ddp::launcher {

// Where the log pump puts what a user is to see: standard output or error of this process, or the job's, behind a
// connection.

/// A queue that never blocks, with lines of several writers kept apart. Not thread-safe.
class Console {
 public:
  /// From this size on, append nothing until the console has taken some.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;

  explicit Console(std::string name) : name_(std::move(name)) {}
  Console& operator=(Console&&) = delete;
  virtual ~Console() = default;

  /// Bytes as a worker wrote them. @p owner tells workers' streams apart.
  virtual void append(const void* owner, std::string_view bytes) = 0;
  /// A line, or a piece of one, behind its prefix, at the start of a line of the console. A line that another writer
  /// interrupted gets a second prefix.
  virtual void append_line(const void* owner, std::string_view prefix, const LinePiece& piece) = 0;

  /// Hands on what can be now.
  virtual void flush() = 0;
  /// Whether flush() would get on.
  virtual bool ready() const = 0;
  /// Bytes that have not been taken.
  virtual std::size_t queued() const = 0;
  /// The descriptor to poll for writing; nothing: none needs to be.
  virtual std::optional<int> awaited() const = 0;

  /// Drops what is queued and all that follows: nothing reads the console.
  virtual void abandon() = 0;
  virtual void close() = 0;
  /// Bytes that the console has taken.
  virtual std::uint64_t taken_bytes() const = 0;
  /// Bytes dropped since abandon().
  virtual std::uint64_t abandoned_bytes() const = 0;

  bool full() const { return queued() >= kFullBytes; }
  bool idle() const { return queued() == 0; }
  /// "standard output"
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// A standard stream of this process as a console: never blocking, whatever the descriptor is.

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

// The job's console, which another process writes for the ranks of all nodes, as the log pump of one node sees it.

/// One stream of it. What has been sent is kept until the console has taken it: where the connection is lost, that and
/// all that follows goes to a console of this process instead, so that lines may appear twice, but none is lost.
class RemoteConsole : public Console {
 public:
  using MakeOwn = std::function<std::unique_ptr<Console>()>;

  /// @param link must outlive the object; shared with the other stream
  /// @param window_bytes what may be on its way, besides the rest of a message: a quarter of it, and a line
  /// @param make_own makes the console of this process
  RemoteConsole(control::Connection& link, int epoch, bool error, std::size_t window_bytes, std::string name,
                MakeOwn make_own);

  void append(const void* owner, std::string_view bytes) override;
  void append_line(const void* owner, std::string_view prefix, const LinePiece& piece) override;

  void flush() override;
  bool ready() const override;
  std::size_t queued() const override;
  std::optional<int> awaited() const override;
  void abandon() override;
  void close() override;
  std::uint64_t taken_bytes() const override;
  std::uint64_t abandoned_bytes() const override;

  /// control::ConsoleTaken
  void taken(std::int64_t messages);
  /// The connection is lost.
  void fall_back();

 private:
  struct Batch {
    control::ConsoleOutput output;
    std::size_t bytes = 0;
  };
  control::ConsolePiece& add(const void* owner, std::size_t bytes, bool mergeable);
  bool dropped(std::size_t bytes);

  control::Connection& link_;
  int epoch_;
  bool error_;
  std::size_t window_bytes_;
  std::size_t batch_bytes_;  ///< of a message, without the rest of its last line
  MakeOwn make_own_;
  std::unique_ptr<Console> own_;  ///< after fall_back()
  std::deque<Batch> unsent_, untaken_;
  std::size_t unsent_bytes_ = 0, untaken_bytes_ = 0;
  std::map<const void*, int> writers_;
  std::vector<const void*> owners_;  ///< by writer
  bool gone_ = false;                ///< abandoned or closed
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t abandoned_bytes_ = 0;
};

/// Puts @p piece on @p console. @param owner of the piece's writer
void write_piece(Console& console, const void* owner, const control::ConsolePiece& piece);

}  // namespace ddp::launcher
