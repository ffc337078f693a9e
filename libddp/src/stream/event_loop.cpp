#include "stream/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"

namespace ddp::stream {
namespace {

// What the kernel stores with a descriptor. Its number may be reused while events of the old one are being handled, so
// a generation tells them apart.
std::uint64_t tag(int fd, std::uint32_t generation) {
  return std::uint64_t{generation} << 32U | static_cast<std::uint32_t>(fd);
}

}  // namespace

EventLoop::EventLoop()
    : fd_(::epoll_create1(EPOLL_CLOEXEC)), alarm_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!fd_ || !alarm_) throw base::system_error("creating an event loop (epoll_create1, timerfd_create)", errno);
  watch(alarm_.get(), [this] { run_timers(); });
}

void EventLoop::control(int operation, int fd, std::uint32_t events, std::uint32_t generation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag(fd, generation);
  if (::epoll_ctl(fd_.get(), operation, fd, &event) != 0) {
    throw base::system_error(fmt::format("watching descriptor {} (epoll_ctl)", fd), errno);
  }
}

void EventLoop::watch(int fd, Handler handler) {
  watch(fd, EPOLLIN, [handler = std::move(handler)](std::uint32_t) { handler(); });
}

void EventLoop::watch(int fd, std::uint32_t events, EventHandler handler) {
  // EEXIST: it is watched already. An entry that only watched_ has belongs to a descriptor that was closed without
  // forget(), and is replaced.
  const std::uint32_t generation = next_generation_++;
  auto watched = std::make_shared<Watched>(Watched{.handler = std::move(handler), .generation = generation});
  control(EPOLL_CTL_ADD, fd, events, generation);
  try {
    watched_.insert_or_assign(fd, std::move(watched));
  } catch (...) {  // no memory: nothing would handle its events
    ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
    throw;
  }
}

void EventLoop::change(int fd, std::uint32_t events) {
  const auto found = watched_.find(fd);
  if (found != watched_.end()) control(EPOLL_CTL_MOD, fd, events, found->second->generation);
}

void EventLoop::want_write(int fd, bool wanted) {
  change(fd, wanted ? std::uint32_t{EPOLLIN} | std::uint32_t{EPOLLOUT} : std::uint32_t{EPOLLIN});
}

void EventLoop::forget(int fd) {
  if (watched_.erase(fd) == 0) return;
  // Fails for a closed descriptor, which epoll has forgotten already.
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::run_once(Deadline deadline) {
  std::array<epoll_event, 64> events;
  int count = 0;
  do {
    count = ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), deadline.poll_timeout_ms());
    if (count < 0 && errno != EINTR) throw base::system_error("waiting for events (epoll_wait)", errno);
  } while (count < 0 || (count == 0 && !deadline.expired()));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t tagged = event.data.u64;
    const auto found = watched_.find(static_cast<int>(tagged & 0xFFFFFFFFU));
    if (found == watched_.end() || found->second->generation != tagged >> 32U) continue;
    const std::shared_ptr<Watched> alive = found->second;  // the handler may forget itself
    alive->handler(event.events);
  }
}

void EventLoop::arm_timers() {
  std::optional<Deadline> next;
  for (const Timer* timer : timers_) {
    if (timer->when_) next = next ? earlier(*next, *timer->when_) : timer->when_;
  }
  if (!next || (alarm_at_ && !(*next < *alarm_at_))) return;  // one that comes too early looks again
  const int left_ms = std::max(next->poll_timeout_ms(), 1);   // zero would disarm it
  const itimerspec time{.it_interval = {},
                        .it_value = {.tv_sec = left_ms / 1000, .tv_nsec = left_ms % 1000 * 1'000'000L}};
  ::timerfd_settime(alarm_.get(), 0, &time, nullptr);
  alarm_at_ = next;
}

void EventLoop::run_timers() {
  std::uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t size = ::read(alarm_.get(), &expirations, sizeof expirations);
  alarm_at_.reset();
  // One at a time, as handlers may set, make and destroy timers.
  const Deadline now{Deadline::Clock::now()};
  const auto due = [&](const Timer* timer) { return timer->when_ && !(now < *timer->when_); };
  for (auto found = timers_.begin(); (found = std::find_if(timers_.begin(), timers_.end(), due)) != timers_.end();) {
    (*found)->when_.reset();
    arm_timers();  // first: the handler may throw
    const Handler handler = (*found)->handler_;
    handler();
  }
  arm_timers();
}

Timer::Timer(EventLoop& loop, EventLoop::Handler handler) : loop_(loop), handler_(std::move(handler)) {
  loop_.timers_.push_back(this);
}

Timer::~Timer() { std::erase(loop_.timers_, this); }

void Timer::set(std::optional<Deadline> when) {
  when_ = when;
  loop_.arm_timers();
}

}  // namespace ddp::stream
