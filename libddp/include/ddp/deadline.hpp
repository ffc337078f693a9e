// An absolute point in time after which waiting stops. Every call that may block hands it down, so that a limit given
// at the top holds for the sum of all steps below it.
#pragma once

#include <algorithm>
#include <chrono>

namespace ddp {

/// The steady clock minus the time in which this process was stopped: by SIGSTOP, by a debugger, or by Slurm, which
/// stops whole jobs (gang scheduling, scontrol suspend). A deadline thus does not pass while the process cannot act. Up
/// to 1.15 s of a stop may count. Stops are noticed while the process has a World or a process group. Thread-safe.
class RunningClock {
 public:
  /// @{
  /// A Clock of the standard library ([time.clock.req]).
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock>;
  static constexpr bool is_steady = true;  // NOLINT(readability-identifier-naming): as clocks of the standard library

  static time_point now() noexcept;
  /// @}
};

/// A moment on this process's clock. Value type; there is deliberately no "never".
class Deadline {
 public:
  using Clock = RunningClock;  ///< pauses while this process is stopped

  /// The moment @p duration from now. Durations are capped at ten years so that no clock overflows.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration) {
    constexpr auto kFarthest = std::chrono::hours(24 * 365 * 10);
    if (duration > kFarthest) return Deadline{Clock::now() + kFarthest};
    return Deadline{Clock::now() + std::chrono::duration_cast<Clock::duration>(duration)};
  }
  /// The moment @p when.
  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when() const { return when_; }        ///< the moment
  bool expired() const { return Clock::now() >= when_; }  ///< whether it has passed

  /// Time left, never negative.
  std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(when_ - Clock::now());
    return std::max(left, std::chrono::milliseconds::zero());
  }

  /// Time left for poll(2) and the like, in ms: rounded up, so that the deadline has passed when the wait times out; at
  /// most one day.
  int poll_timeout_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 86'400'000));
  }

  /// The earlier of the two.
  friend Deadline earlier(Deadline a, Deadline b) { return a.when_ < b.when_ ? a : b; }
  friend bool operator<(Deadline a, Deadline b) { return a.when_ < b.when_; }  ///< @p a is earlier

 private:
  Clock::time_point when_;
};

}  // namespace ddp
