// ddprun's standard output or error as the log pump writes to it: never blocking, whatever the descriptor is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "logs/line_assembler.hpp"
#include "logs/output_file.hpp"

namespace ddp::launcher {

/// A queue in front of a descriptor that other processes share: its O_NONBLOCK is left alone. Lines of several writers
/// are kept apart. Not thread-safe.
class ConsoleSink {
 public:
  /// From this size on, append nothing until the console has taken some.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;

  /// @param fd not owned; may be closed. @param name "standard output"
  ConsoleSink(int fd, std::string name, OutputFile::Complaint complaint);
  /// Whether both descriptors refer to the same file, pipe, socket or terminal: then one sink must serve both, or lines
  /// would be torn.
  static bool same_target(int one, int other);

  /// Bytes as a worker wrote them. @p owner tells workers' streams apart.
  void append(const void* owner, std::string_view bytes);
  /// A line, or a piece of one, behind its prefix, at the start of a line of the console. A line that another writer
  /// interrupted gets a second prefix.
  void append_line(const void* owner, std::string_view prefix, const LinePiece& piece);

  /// Writes what the descriptor takes now.
  void flush();

  std::size_t queued() const { return queue_.size() - head_; }
  bool full() const { return queued() >= kFullBytes; }
  bool idle() const { return queued() == 0; }
  /// The descriptor to poll for writing; nothing: flush() need not be called before the next append().
  std::optional<int> awaited() const;

  /// Drops what is queued and all that follows: nothing reads the console.
  void abandon();
  /// Notes the bytes missing in a console that is a file, and releases the console.
  void close();
  /// Bytes that the descriptor has taken.
  std::uint64_t taken_bytes() const { return taken_bytes_; }
  /// Bytes dropped since abandon().
  std::uint64_t abandoned_bytes() const { return abandoned_bytes_; }
  const std::string& name() const { return name_; }

 private:
  enum class Kind { file, socket, own, shared };
  void detect(int fd, OutputFile::Complaint complaint);
  void push(std::string_view bytes);
  long write_some(std::string_view bytes);

  std::string name_;
  Kind kind_ = Kind::shared;
  int fd_;
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
};

}  // namespace ddp::launcher
