// eventfd(2): lets any thread wake one that waits in poll(2) or epoll(7).
#pragma once

#include "base/unique_fd.hpp"

namespace ddp::base {

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

}  // namespace ddp::base
