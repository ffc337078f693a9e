// This process's standard input, of which others read what the ranks do not: in "while read line; do ddprun ...; done <
// list", ddprun must leave the lines that no rank has read.
#pragma once

#include <cstddef>
#include <optional>

#include <ddp/bytes.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Not thread-safe.
class InputSource {
 public:
  /// @param fd stays the caller's. Throws Error(system).
  explicit InputSource(int fd);

  int fd() const { return fd_; }
  /// Polling says when there is more. Files and devices without poll always have something; a terminal says so, too,
  /// while this process is in its background and may not read.
  bool tells() const { return kind_ == Kind::pipe || kind_ == Kind::socket || (terminal_ && !refused_); }

  /// Some of what comes next, at most @p most bytes, without taking it, where the kind of input allows that; elsewhere
  /// (terminals) it is taken now. Empty at the end. Nothing: there is none at the moment. Throws Error(system).
  std::optional<Bytes> peek(std::size_t most);
  /// The first @p size bytes of what was peeked at have been read by a rank: nobody else gets them.
  void take(std::size_t size);

 private:
  enum class Kind { file, pipe, socket, other };

  int fd_;
  Kind kind_;
  bool terminal_ = false;
  bool refused_ = false;     ///< by the last peek()
  base::UniqueFd copy_out_;  ///< a pipe of our own: what tee(2) copies a pipe's content to
  base::UniqueFd copy_in_;
};

/// Whether standard input is closed or /dev/null.
bool input_is_empty();

}  // namespace ddp::launcher
