// How threads wait in a group. Between two polls in vain first as little as possible, since what they wait for may be a
// microsecond away, and in the end they sleep, since others need the processor.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <utility>

#include <ddp/deadline.hpp>

namespace ddp::collectives {

/// How often those who wait in a group yield before they sleep, where they may not spin. Yielding costs least
/// while nothing but the ranks runs. But sched_yield may come back at once although another rank could run: the
/// scheduler (EEVDF) lets a task that has had more than its share wait. And it may give a processor away for
/// milliseconds, to a program that computes. Only sleep hands over for certain. So waits that ended while yielding
/// allow a little more of it, and those that did not allow less. Thread-safe; a lost update does not matter.
class YieldBudget {
 public:
  static constexpr unsigned kLeast = 4;
  static constexpr unsigned kMost = 128;

  unsigned yields() const noexcept { return quarters_.load(std::memory_order_relaxed) / 4; }
  void helped() noexcept { set(std::min(quarters_.load(std::memory_order_relaxed) + 1, kMost * 4)); }
  void was_in_vain() noexcept {
    const unsigned quarters = quarters_.load(std::memory_order_relaxed);
    set(std::max(quarters - quarters / 4, kLeast * 4));
  }

 private:
  void set(unsigned quarters) noexcept { quarters_.store(quarters, std::memory_order_relaxed); }

  std::atomic<unsigned> quarters_{kLeast * 4 * 4};
};

/// Whether other programs want this process's processors. A yield then costs more than the wait: the scheduler runs
/// them for milliseconds, and Linux from 6.18 on charges the yielding task the rest of its time slice, so that tasks
/// that poll and yield hardly run at all. Who waits then sleeps at once, and is woken or looks again. A rank that
/// shares processors with this one and computes for a moment looks the same, so a crowd is taken for short at first,
/// and for longer each time that the next one follows it closely. Thread-safe; a lost update does not matter.
class Crowd {
 public:
  using Clock = Deadline::Clock;

  /// How long a yield takes at least that lets another program compute: ranks that poll come back sooner.
  static constexpr std::chrono::microseconds kLent{500};
  /// Until a yield is tried again, at first and at most.
  static constexpr std::chrono::milliseconds kFirst{10};
  static constexpr std::chrono::milliseconds kLongest{2000};
  /// A crowd is another one if so many times the length of the last have passed without one.
  static constexpr int kApart = 4;

  explicit Crowd(std::chrono::microseconds lent = kLent) : lent_(lent) {}
  bool at(Clock::time_point now) const noexcept {
    return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
  }
  /// @p took: by a yield that ended at @p now. Returns at(now).
  bool judge(Clock::time_point now, Clock::duration took) noexcept {
    if (took >= lent_) begin(now);
    return at(now);
  }

  static Crowd& of_process() noexcept {
    static Crowd crowd;
    return crowd;
  }

 private:
  void begin(Clock::time_point now) noexcept {
    const Clock::time_point last{Clock::duration{until_.load(std::memory_order_relaxed)}};
    const Clock::duration length{length_.load(std::memory_order_relaxed)};
    if (now < last) return;  // another thread's yield, begun before
    const Clock::duration next =
        now - kApart * length > last ? kFirst : std::min<Clock::duration>(2 * length, kLongest);
    length_.store(next.count(), std::memory_order_relaxed);
    until_.store((now + next).time_since_epoch().count(), std::memory_order_relaxed);
  }

  std::chrono::microseconds lent_;
  std::atomic<Clock::rep> length_{Clock::duration{kFirst}.count()};  ///< of the last crowd
  std::atomic<Clock::rep> until_{0};                                 ///< the clock's beginning: there has been none
};

/// For one wait of one thread; reset() after every poll that ended something. Reads the clock rarely.
/// A poll that takes long has worked, although its operation still runs: then there is no rest before the next.
class WaitLadder {
 public:
  using Clock = Deadline::Clock;
  using Limit = std::chrono::microseconds;

  static constexpr std::chrono::microseconds kSpin{20};
  static constexpr std::chrono::microseconds kYield{100};
  static constexpr std::chrono::microseconds kFirstRest{20};  ///< where nothing ends a rest early
  static constexpr std::chrono::microseconds kLongestRest{1000};
  /// Polls in vain are shorter, if nothing interrupts them.
  static constexpr std::chrono::microseconds kWork{20};
  /// Pauses between two looks at the clock: 20 to 40 ns, or 1 us where the kernel must be asked.
  static constexpr unsigned kSpinsPerLook = 64;
  static constexpr unsigned kYieldsPerLook = 4;

  /// @param may_spin the ranks have a processor each, and polls ask memory, not the kernel.
  /// @param first_rest at most kLongestRest. @param budget of those that may not spin. Both pointers must outlive this
  /// object.
  explicit WaitLadder(bool may_spin, Limit first_rest = kFirstRest, YieldBudget* budget = nullptr,
                      Crowd* crowd = &Crowd::of_process())
      : may_spin_(may_spin), first_rest_(first_rest), budget_(may_spin ? nullptr : budget), crowd_(crowd) {
    reset();
  }

  void reset() noexcept {
    if (budget_ != nullptr && step_ == Step::yield && yields_ > 0) budget_->helped();
    step_ = may_spin_ ? Step::spin : Step::yield;
    begin_ = {};
    yields_ = 0;
    rest_ = first_rest_;
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
      const bool in_vain = yield();
      if (in_vain && budget_ != nullptr) budget_->was_in_vain();
      if (in_vain || crowded_) {
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

  /// Whether this was the last one, unless there is a crowd.
  bool yield() noexcept {
    const bool first = begin_ == Clock::time_point{};
    const bool looks = count_++ % kYieldsPerLook == 0 || first;
    const auto before = looks ? Clock::now() : begin_;
    if (first) {
      begin_ = before;
      crowded_ = crowd_->at(before);
      if (crowded_) {
        looked_ = true;
        return false;
      }
    }
    ::sched_yield();
    const bool spent = budget_ != nullptr && ++yields_ >= budget_->yields();
    if (!looks) return spent;
    looked_ = true;
    const auto now = Clock::now();
    crowded_ = crowd_->judge(now, now - before);
    return spent || now - begin_ >= kYield;
  }
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
  Limit first_rest_;
  YieldBudget* budget_;
  Crowd* crowd_;
  bool crowded_ = false;
  bool looked_ = false;
  Step step_ = Step::spin;
  unsigned count_ = 0;
  unsigned yields_ = 0;      ///< of this step
  Clock::time_point begin_;  ///< of this step, at the first look
  Clock::time_point since_;  ///< end of the last rest
  Limit rest_ = kFirstRest;
};

/// Those that wait for operations of one group: one of them leads, that is, drives and rests in a backend; the others
/// follow, asleep.
class Waiters {
 public:
  bool led() const noexcept { return led_.load(); }
  /// Whether the caller leads from now on.
  bool lead() noexcept { return !led_.load(std::memory_order_relaxed) && !led_.exchange(true); }
  void end_lead() noexcept {
    led_ = false;
    wake();
  }
  /// Sleeps until @p done(), or until a follower could lead; at most for @p limit.
  template <class Done>
  void follow(bool leading, std::chrono::microseconds limit, Done&& done) {
    std::unique_lock lock(mutex_);
    followers_.fetch_add(1);
    wakes_.wait_for(lock, limit, [&] { return done() || (!leading && !led_); });
    followers_.fetch_sub(1);
  }
  /// An operation has finished.
  void wake() noexcept {
    if (followers_ == 0) return;
    const std::lock_guard lock(mutex_);
    wakes_.notify_all();
  }

 private:
  std::atomic<bool> led_{false};
  std::atomic<int> followers_{0};
  std::mutex mutex_;
  std::condition_variable wakes_;
};

// ---- Whether the ranks of a node have a processor each: then a rank that waits may spin.

/// Processors that this process may use.
struct ProcessorShare {
  int in_mask = 1;     ///< of the affinity mask
  double quota = 0;    ///< processors' time that its cgroups allow; 0: no limit
  int on_machine = 1;  ///< online

  /// Reads it anew. @param root of the file system, for tests.
  static ProcessorShare read(const std::filesystem::path& root = "/");

  /// Whether @p ranks on this node, launched alike, have one each. A mask smaller than the machine that has too few for
  /// all is taken for this rank's own part: launchers bind ranks to different cores.
  bool enough_for(int ranks) const noexcept;
};

}  // namespace ddp::collectives
