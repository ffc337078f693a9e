// Owners of file descriptors: of any, of those that forked children must not keep, and of an eventfd that wakes a
// waiting thread.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <utility>

namespace ddp::base {

// The owner of a file descriptor.

/// Closes its descriptor when it goes away. Move-only. -1 means empty.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// The owner of a descriptor that forked children do not keep, so that peers see a connection end with this process, not
// with the last of its children, such as a data loader's workers.

/// In a child of fork(3) an unconnected socket has the descriptor's number instead: objects that the child destroys
/// close that one. Children of vfork and clone keep the descriptor, and so do all children if its number is 65,536 or
/// larger. A number that the program has closed and uses for another file stays that. Move-only; not for a descriptor
/// that another owner may close.
class UnsharedFd {
 public:
  UnsharedFd() = default;
  explicit UnsharedFd(UniqueFd fd) noexcept;
  UnsharedFd(UnsharedFd&& other) noexcept = default;
  UnsharedFd& operator=(UnsharedFd&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::move(other.fd_);
    return *this;
  }
  UnsharedFd(const UnsharedFd&) = delete;
  UnsharedFd& operator=(const UnsharedFd&) = delete;
  ~UnsharedFd() { reset(); }

  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept;
  /// From now on children keep it.
  UniqueFd release() noexcept;

 private:
  UniqueFd fd_;
};

// eventfd(2): lets any thread wake one that waits in poll(2) or epoll(7).

/// Thread-safe.
class WakeEvent {
 public:
  /// Throws Error(system).
  WakeEvent();

  int fd() const noexcept { return fd_.get(); }  ///< readable from ring() to clear()
  void ring() const noexcept;
  void clear() const noexcept;

 private:
  UniqueFd fd_;
};

// Sessions usually limit open files to 1024, which the program can raise itself. Many ranks or groups need more.

/// Before @p more descriptors are opened: raises this process's soft limit (RLIMIT_NOFILE) if it may be too low, as far
/// as the hard one allows, and logs that. Children inherit it. Thread-safe.
void allow_open_files(std::size_t more) noexcept;

}  // namespace ddp::base
