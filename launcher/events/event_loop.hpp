// epoll(7), with a function for each descriptor: what ddprun's processes wait in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Not thread-safe: one thread runs it.
class EventLoop {
 public:
  using Handler = std::function<void()>;

  EventLoop();

  /// Readable when a handler is due: so a loop can be watched by another one.
  int fd() const { return fd_.get(); }

  /// Calls @p handler while @p fd is readable (or its other end is gone). A descriptor is watched once.
  void watch(int fd, Handler handler);
  /// Also while it is writable, or no longer.
  void want_write(int fd, bool wanted);
  /// Before the descriptor is closed. Safe inside a handler, also for other descriptors.
  void forget(int fd);

  /// Waits until something happens or @p deadline, and calls the handlers of what did.
  void run_once(Deadline deadline);

 private:
  struct Watched {
    Handler handler;
    std::uint32_t generation = 0;  ///< tells it from others that had the same number before
  };
  void control(int operation, int fd, std::uint32_t events, std::uint32_t generation);

  base::UniqueFd fd_;
  std::uint32_t next_generation_ = 0;
  std::unordered_map<int, std::shared_ptr<Watched>> watched_;
};

}  // namespace ddp::launcher
