// Makes RunningClock notice that this process was stopped: a thread says again and again that it runs.
#pragma once

namespace ddp::base {

/// While one exists, RunningClock leaves out stops. Without any, it is the steady clock. In a forked child, those of
/// its parent count for nothing. Thread-safe.
class RunningClockGuard {
 public:
  /// Starts the thread if it is the first. Where no more threads can be started, stops are not noticed.
  RunningClockGuard() noexcept;
  RunningClockGuard& operator=(RunningClockGuard&&) = delete;
  ~RunningClockGuard();

 private:
  void* const ticker_;
};

}  // namespace ddp::base
