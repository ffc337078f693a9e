#include "base/running_clock.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include <ddp/deadline.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"

namespace ddp {
namespace {

using Steady = std::chrono::steady_clock;
using Ticks = Steady::duration::rep;

constexpr Steady::duration kTick = std::chrono::milliseconds(650);  // a process that waits should hardly wake up
/// A thread that others keep from a processor comes to it within this time. What is longer is a stop.
constexpr Steady::duration kTolerance = std::chrono::milliseconds(500);
/// After a stop the thread that notes it runs as soon as all others do.
constexpr Steady::duration kPatience = std::chrono::milliseconds(100);
constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

/// Time spent stopped.
std::atomic<Ticks> stopped{0};
/// By then the thread will have said again that the process runs.
std::atomic<Ticks> heard_by{kNever};

Ticks steady_now() { return Steady::now().time_since_epoch().count(); }

/// The thread and those who need it.
struct Ticker {
  std::mutex mutex;  ///< guards what follows
  std::condition_variable wakes;
  int guards = 0;
  unsigned turn = 0;  ///< of the thread that is needed
  std::thread thread;

  void run(unsigned own_turn) {
    std::unique_lock lock(mutex);
    Ticks limit = kNever;
    while (turn == own_turn) {
      const Ticks now = steady_now();
      // first: who sees the new limit sees this, too
      if (now > limit) stopped.store(stopped.load(std::memory_order_relaxed) + now - limit, std::memory_order_release);
      limit = now + (kTick + kTolerance).count();
      heard_by.store(limit, std::memory_order_release);
      wakes.wait_for(lock, kTick, [&] { return turn != own_turn; });
    }
  }
};

std::atomic<Ticker*> current{nullptr};

/// Never destroyed: there may be guards until the end of the process. A forked child has another one, and no thread.
Ticker& ticker() {
  static const int registered = [] {
    current = new Ticker;
    return ::pthread_atfork(nullptr, nullptr, [] {
      heard_by = kNever;
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
  Ticks waits_until = 0;
  for (;;) {
    Ticks limit = heard_by.load(std::memory_order_acquire);
    const Ticks lost = stopped.load(std::memory_order_acquire);
    const Ticks now = steady_now();
    if (now <= limit) return time_point{duration{now - lost}};
    // The process was stopped until just now, and the thread is about to note it; or that gets no processor.
    if (waits_until == 0) waits_until = now + kPatience.count();
    if (now >= waits_until) heard_by.compare_exchange_strong(limit, now + kTolerance.count());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

namespace base {

RunningClockGuard::RunningClockGuard() noexcept : ticker_(&ticker()) {
  Ticker& own = *static_cast<Ticker*>(ticker_);
  const std::lock_guard lock(own.mutex);
  if (own.guards++ > 0) return;
  try {
    own.thread = start_thread([&own, turn = own.turn] { own.run(turn); });
  } catch (const Error& error) {
    log(LogLevel::debug, "deadlines run on while this process is stopped: {}", error.what());
  }
}

RunningClockGuard::~RunningClockGuard() {
  if (ticker_ != current.load()) return;  // the parent's, whose lock may be held for ever
  Ticker& own = *static_cast<Ticker*>(ticker_);
  std::thread over;
  {
    const std::lock_guard lock(own.mutex);
    if (--own.guards > 0) return;
    ++own.turn;
    heard_by = kNever;
    over = std::move(own.thread);
    own.wakes.notify_all();
  }
  if (over.joinable()) over.join();
}

}  // namespace base
}  // namespace ddp
