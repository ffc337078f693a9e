#include "base/running_clock.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

#include <ddp/deadline.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"

namespace ddp {
namespace {

using Steady = std::chrono::steady_clock;
using Ticks = Steady::duration::rep;

constexpr Steady::duration kTick = std::chrono::milliseconds(250);
/// A processor that others use does not come back for so long. What is longer is a stop.
constexpr Steady::duration kTolerance = std::chrono::milliseconds(500);
constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

/// Time spent stopped.
std::atomic<Ticks> stopped{0};
/// By then somebody will have said that the process runs: if the clock is later, it did not run in between.
std::atomic<Ticks> heard_by{kNever};
/// Held for some instructions by who changes these two: `stopped` first, so that who sees the new limit sees both.
std::atomic_flag changing;

Ticks steady_now() { return Steady::now().time_since_epoch().count(); }

/// Notes a stop that is just over, and says that the process runs. @param silence how long nobody may say so again.
/// @return the time without stops.
Ticks say_running(Steady::duration silence) noexcept {
  while (changing.test_and_set(std::memory_order_acquire)) ::sched_yield();
  const Ticks limit = heard_by.load(std::memory_order_relaxed);
  const Ticks now = steady_now();
  Ticks lost = stopped.load(std::memory_order_relaxed);
  if (now > limit) stopped.store(lost += now - limit, std::memory_order_release);
  heard_by.store(now + silence.count(), std::memory_order_release);
  changing.clear(std::memory_order_release);
  return now - lost;
}

/// The thread and those who need it.
struct Ticker {
  std::mutex mutex;  ///< guards what follows
  std::condition_variable wakes;
  int guards = 0;
  bool running = false;

  void run() {
    std::unique_lock lock(mutex);
    while (guards > 0) {
      say_running(kTick + kTolerance);
      wakes.wait_for(lock, kTick, [&] { return guards == 0; });
    }
    heard_by.store(kNever, std::memory_order_release);
    running = false;
  }
};

std::atomic<Ticker*> current{nullptr};

/// Never destroyed: the thread may be at its end when the process is. A forked child has another one, and no thread.
Ticker& ticker() {
  static const int registered = [] {
    current = new Ticker;
    return ::pthread_atfork(nullptr, nullptr, [] {
      heard_by = kNever;
      changing.clear();
      current = nullptr;
    });
  }();
  static_cast<void>(registered);
  Ticker* known = current.load();
  if (known == nullptr) {
    auto* fresh = new Ticker;
    if (current.compare_exchange_strong(known, fresh)) return *fresh;
    delete fresh;
  }
  return *known;
}

}  // namespace

RunningClock::time_point RunningClock::now() noexcept {
  const Ticks limit = heard_by.load(std::memory_order_acquire);
  const Ticks lost = stopped.load(std::memory_order_acquire);
  const Ticks now = steady_now();
  return time_point{duration{now <= limit ? now - lost : say_running(kTolerance)}};
}

namespace base {

RunningClockGuard::RunningClockGuard() noexcept : ticker_(&ticker()) {
  Ticker& own = *static_cast<Ticker*>(ticker_);
  const std::lock_guard lock(own.mutex);
  ++own.guards;
  if (own.running) return;
  try {
    start_thread([&own] { own.run(); }).detach();
    own.running = true;
  } catch (const Error& error) {
    log(LogLevel::debug, "deadlines run on while this process is stopped: {}", error.what());
  }
}

RunningClockGuard::~RunningClockGuard() {
  if (ticker_ != current.load()) return;  // the parent's, whose lock may be held for ever
  Ticker& own = *static_cast<Ticker*>(ticker_);
  const std::lock_guard lock(own.mutex);
  if (--own.guards == 0) own.wakes.notify_all();
}

}  // namespace base
}  // namespace ddp
