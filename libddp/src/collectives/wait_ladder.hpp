// What a thread does between two polls in vain: first as little as possible, since what it waits for may be a
// microsecond away, and in the end sleep, since others need the processor.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <ddp/deadline.hpp>

namespace ddp::collectives {

/// For one wait of one thread; reset() after every poll that ended something. Reads the clock rarely.
/// A poll that takes long has worked, although its operation still runs: then there is no rest before the next.
class WaitLadder {
 public:
  using Clock = Deadline::Clock;
  using Limit = std::chrono::microseconds;

  static constexpr std::chrono::microseconds kSpin{5};
  static constexpr std::chrono::microseconds kYield{100};
  static constexpr std::chrono::microseconds kFirstRest{20};
  static constexpr std::chrono::microseconds kLongestRest{1000};
  /// Polls in vain are shorter, if nothing interrupts them.
  static constexpr std::chrono::microseconds kWork{20};
  /// Pauses between two looks at the clock: 20 to 40 ns, or 1 us where the kernel must be asked.
  static constexpr unsigned kSpinsPerLook = 64;
  static constexpr unsigned kYieldsPerLook = 4;

  /// @param may_spin the ranks of this node have a processor each.
  explicit WaitLadder(bool may_spin) : may_spin_(may_spin) { reset(); }

  void reset() noexcept {
    step_ = may_spin_ ? Step::spin : Step::yield;
    begin_ = {};
    rest_ = kFirstRest;
  }

  /// Spins or yields once and returns 0; or returns for how long the caller shall rest, twice as long each time. The
  /// caller says when it has rested().
  Limit pause() noexcept {
    if (step_ == Step::spin) {
      relax();
      if (++count_ % kSpinsPerLook == 0 && passed(kSpin)) next(Step::yield);
      return Limit::zero();
    }
    if (step_ == Step::yield) {
      ::sched_yield();
      if (++count_ % kYieldsPerLook == 0 && passed(kYield)) {
        next(Step::rest);
        rested();
      }
      return Limit::zero();
    }
    looked_ = true;
    if (Clock::now() - since_ >= kWork) {
      reset();
      return Limit::zero();
    }
    return std::exchange(rest_, std::min(rest_ * 2, kLongestRest));
  }
  void rested() noexcept { since_ = Clock::now(); }

  /// Whether the clock has been read, or is due, since the last call: a good time for the caller to look at its
  /// deadline.
  bool looked() noexcept { return std::exchange(looked_, false); }

  /// Tells the processor that this is a spin loop.
  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
  }

 private:
  enum class Step { spin, yield, rest };

  bool passed(Limit limit) noexcept {
    looked_ = true;
    const auto now = Clock::now();
    if (begin_ == Clock::time_point{}) begin_ = now;
    return now - begin_ >= limit;
  }
  void next(Step step) noexcept {
    step_ = step;
    count_ = 0;
    begin_ = {};
  }

  bool may_spin_;
  bool looked_ = false;
  Step step_ = Step::spin;
  unsigned count_ = 0;
  Clock::time_point begin_;  ///< of this step, at the first look
  Clock::time_point since_;  ///< end of the last rest or yield
  Limit rest_ = kFirstRest;
};

}  // namespace ddp::collectives
