// The owner of a descriptor that forked children do not keep, so that peers see a connection end with this process, not
// with the last of its children, such as a data loader's workers.
#pragma once

#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::base {

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

 private:
  UniqueFd fd_;
};

}  // namespace ddp::base
