// Standard input of a job: who reads it here, and how it comes to rank 0 on another node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "control/messages.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

// This process's standard input, of which others read what the ranks do not: in "while read line; do ddprun ...; done <
// list", ddprun must leave the lines that no rank has read.

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

// Hands standard input on to rank 0 on another node, a piece at a time: the next one follows when rank 0 has read this
// one, so that what it does not read stays where it is.

/// Runs in the caller's event loop: after each turn of it, call time_passed(). Not thread-safe.
class JobInput {
 public:
  using Send = std::function<void(const control::Input& piece)>;

  /// Reads @p fd once begin() has been called. @p loop must outlive the object. Throws Error(system).
  JobInput(stream::EventLoop& loop, int fd, Send send);
  JobInput& operator=(JobInput&&) = delete;
  ~JobInput();

  /// Rank 0's node can take input. @param anew it is another node than before, which gets what rank 0 has not read
  void begin(bool anew);
  /// Rank 0 has read so many bytes more.
  void taken(std::int64_t bytes);

  std::optional<Deadline> next_deadline() const { return look_at_; }
  void time_passed();

 private:
  void look();
  void watch(bool wanted);

  stream::EventLoop& loop_;
  InputSource source_;
  Send send_;
  std::size_t out_ = 0;  ///< sent, and not read by rank 0
  bool begun_ = false;
  bool ended_ = false;
  bool watched_ = false;
  std::optional<Deadline> look_at_;
};

// Hands on standard input to srun, where it is a terminal: srun is in a process group of its own, and may not read it.

/// Starts a thread that copies standard input into a pipe, as it comes, until its end (at a terminal: Ctrl-D) or until
/// nobody reads the pipe any more. While this process is in a terminal's background it reads nothing. @return the end
/// to read from. Throws Error(system).
base::UniqueFd relay_input();

}  // namespace ddp::launcher
