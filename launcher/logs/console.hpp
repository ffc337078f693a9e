// Where the log pump puts what a user is to see: standard output or error of this process, or the job's, behind a
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "logs/line_assembler.hpp"

namespace ddp::launcher {

/// A queue that never blocks, with lines of several writers kept apart. Not thread-safe.
class Console {
 public:
  /// From this size on, append nothing until the console has taken some.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;

  explicit Console(std::string name) : name_(std::move(name)) {}
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
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

}  // namespace ddp::launcher
