#include "events/heartbeat.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/errors.hpp"

namespace ddp::launcher {
namespace {

/// Beats missed by a process that was stopped, or that its file system held up.
constexpr int kMissedWhenStopped = 3;

std::chrono::milliseconds to_milliseconds(Heartbeat::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

timespec to_timespec(std::chrono::milliseconds time) {
  return {.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
}

}  // namespace

Heartbeat::Heartbeat(stream::EventLoop& loop, std::chrono::milliseconds interval, stream::EventLoop::Handler on_beat)
    : loop_(loop), interval_(interval), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  const itimerspec times{.it_interval = to_timespec(interval), .it_value = to_timespec(interval)};
  if (!timer_ || ::timerfd_settime(timer_.get(), 0, &times, nullptr) != 0)
    throw base::system_error("setting a timer (timerfd)", errno);
  loop_.watch(timer_.get(), [this, handler = std::move(on_beat)] {
    if (take_beat()) handler();
  });
}

Heartbeat::~Heartbeat() { loop_.forget(timer_.get()); }

bool Heartbeat::take_beat() {
  std::uint64_t beats = 0;
  if (::read(timer_.get(), &beats, sizeof beats) != sizeof beats) return false;
  const Time now = Clock::now();
  if (beats >= static_cast<std::uint64_t>(kMissedWhenStopped)) {
    awake_since_ = now;
    pause_ = to_milliseconds(now - last_beat_);
  }
  last_beat_ = now;
  return true;
}

Deadline Heartbeat::silent_at(Time heard, std::chrono::milliseconds limit) const {
  return Deadline{std::max(heard, awake_since_) + limit};
}

std::chrono::milliseconds Heartbeat::silence(Time heard) const {
  return to_milliseconds(Clock::now() - std::max(heard, awake_since_));
}

std::chrono::milliseconds Heartbeat::own_pause() const {
  const Time now = Clock::now();
  // The loop may hear of what happened meanwhile before it takes the beat.
  if (now - last_beat_ >= kMissedWhenStopped * interval_) return to_milliseconds(now - last_beat_);
  return now - awake_since_ < 2 * interval_ ? pause_ : std::chrono::milliseconds{0};
}

}  // namespace ddp::launcher
