// epoll(7) with a function for each descriptor: the main loop of ddprun's processes.
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

  /// Readable when a handler is due, so that another loop can watch this one.
  int fd() const { return fd_.get(); }

  /// Calls @p handler while @p fd is readable (or its other end is gone). A descriptor is watched once.
  void watch(int fd, Handler handler);
  /// Whether to call the handler also while the descriptor is writable.
  void want_write(int fd, bool wanted);
  /// Call it before the descriptor is closed. Safe inside any handler.
  void forget(int fd);

  /// Waits for events until @p deadline and calls their handlers.
  void run_once(Deadline deadline);

 private:
  struct Watched {
    Handler handler;
    std::uint32_t generation = 0;  ///< tells descriptors of the same number apart
  };
  void control(int operation, int fd, std::uint32_t events, std::uint32_t generation);

  base::UniqueFd fd_;
  std::uint32_t next_generation_ = 0;
  std::unordered_map<int, std::shared_ptr<Watched>> watched_;
};

}  // namespace ddp::launcher
