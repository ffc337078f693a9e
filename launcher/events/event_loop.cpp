// epoll(7) with a function for each descriptor; generations tell descriptors of the same number apart.
#include "events/event_loop.hpp"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"

namespace ddp::launcher {
namespace {

// What the kernel stores with a descriptor. Its number may be reused while events of the old one are being handled, so
// a generation tells them apart.
std::uint64_t tag(int fd, std::uint32_t generation) {
  return std::uint64_t{generation} << 32U | static_cast<std::uint32_t>(fd);
}

}  // namespace

EventLoop::EventLoop() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw base::system_error("creating an event loop (epoll_create1)", errno);
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
  // EEXIST: it is watched already. An entry that only watched_ has belongs to a descriptor that was closed without
  // forget(), and is replaced.
  const std::uint32_t generation = next_generation_++;
  auto watched = std::make_shared<Watched>(Watched{.handler = std::move(handler), .generation = generation});
  control(EPOLL_CTL_ADD, fd, EPOLLIN, generation);
  watched_.insert_or_assign(fd, std::move(watched));
}

void EventLoop::want_write(int fd, bool wanted) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  const std::uint32_t events = wanted ? std::uint32_t{EPOLLIN} | std::uint32_t{EPOLLOUT} : std::uint32_t{EPOLLIN};
  control(EPOLL_CTL_MOD, fd, events, found->second->generation);
}

void EventLoop::forget(int fd) {
  if (watched_.erase(fd) == 0) return;
  // Fails for a closed descriptor, which epoll has forgotten already.
  epoll_event unused{};
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, &unused);
}

void EventLoop::run_once(Deadline deadline) {
  std::array<epoll_event, 64> events;
  int count = 0;
  do {
    count = ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), deadline.poll_timeout_ms());
    if (count < 0 && errno != EINTR) throw base::system_error("waiting for events (epoll_wait)", errno);
  } while (count < 0 || (count == 0 && !deadline.expired()));
  for (int i = 0; i < count; ++i) {
    const std::uint64_t event = events.at(static_cast<std::size_t>(i)).data.u64;
    const auto found = watched_.find(static_cast<int>(event & 0xFFFFFFFFU));
    if (found == watched_.end() || found->second->generation != event >> 32U) continue;
    const std::shared_ptr<Watched> alive = found->second;  // the handler may forget itself
    alive->handler();
  }
}

}  // namespace ddp::launcher
