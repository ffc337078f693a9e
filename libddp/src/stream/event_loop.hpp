// epoll(7) with a function for each descriptor, and timers: the loop of every thread that serves connections.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::stream {

class Timer;

/// Not thread-safe: one thread runs it.
class EventLoop {
 public:
  using Handler = std::function<void()>;
  /// @param events EPOLLIN and the like
  using EventHandler = std::function<void(std::uint32_t events)>;

  /// Throws Error(system).
  EventLoop();
  EventLoop& operator=(EventLoop&&) = delete;

  /// Readable when a handler or a timer is due, so that another loop can watch this one.
  int fd() const { return fd_.get(); }

  /// Calls @p handler while @p fd is readable (or its other end is gone). A descriptor is watched once.
  void watch(int fd, Handler handler);
  /// Calls @p handler for these events; for EPOLLERR and EPOLLHUP always.
  void watch(int fd, std::uint32_t events, EventHandler handler);
  void change(int fd, std::uint32_t events);
  /// Whether to call the handler also while the descriptor is writable.
  void want_write(int fd, bool wanted);
  /// Call it before the descriptor is closed. Safe inside any handler.
  void forget(int fd);

  /// Waits for events until @p deadline and calls their handlers. An exception of a handler leaves it; what has not
  /// been handled is so by the next call.
  void run_once(Deadline deadline);

 private:
  friend class Timer;
  struct Watched {
    EventHandler handler;
    std::uint32_t generation = 0;  ///< tells descriptors of the same number apart
  };
  void control(int operation, int fd, std::uint32_t events, std::uint32_t generation);
  void arm_timers();
  void run_timers();

  base::UniqueFd fd_;
  base::UniqueFd alarm_;  ///< timerfd of the earliest timer
  std::optional<Deadline> alarm_at_;
  std::uint32_t next_generation_ = 0;
  std::unordered_map<int, std::shared_ptr<Watched>> watched_;
  std::vector<Timer*> timers_;
};

/// Calls a function once at the time that is set. Belongs to the thread of the loop, which outlives it.
class Timer {
 public:
  Timer(EventLoop& loop, EventLoop::Handler handler);
  ~Timer();
  Timer& operator=(Timer&&) = delete;

  /// In place of any time that was set before; empty: never.
  void set(std::optional<Deadline> when);

 private:
  friend class EventLoop;
  EventLoop& loop_;
  EventLoop::Handler handler_;
  std::optional<Deadline> when_;
};

}  // namespace ddp::stream
