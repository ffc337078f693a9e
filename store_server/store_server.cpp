// The server's thread: its events, new connections, and the end of each.
#include "store_server/store_server.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "store_server/store_server_impl.hpp"

namespace ddp::store_server {
namespace {

using base::LogLevel;

/// Connections accepted before clients are served again.
constexpr int kAcceptBurst = 64;
/// Pause in accepting when the host lacks resources.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLongestSleep{60};
/// How often clients that hold up others are looked for.
constexpr std::chrono::milliseconds kStallCheck{500};

base::UniqueFd spare_descriptor() { return base::UniqueFd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}; }

}  // namespace

StoreServer::Impl::Impl(const StoreServerOptions& given)
    : options(given),
      listeners(listen_on(options.listen_addresses, options.port, options.port_range)),
      epoll(::epoll_create1(EPOLL_CLOEXEC)),
      spare(spare_descriptor()),
      keys(options.limits.stored_bytes) {
  if (!epoll) throw base::system_error("starting the TCPStore server", errno);
  watch(stop.fd());
  for (const base::UniqueFd& socket : listeners.sockets) watch(socket.get());
  thread = base::start_thread([this] { serve(); });
}

StoreServer::Impl::~Impl() {
  stop.ring();
  thread.join();
}

void StoreServer::Impl::serve() noexcept {
  for (;;) {
    try {
      while (turn()) {
      }
      return;
    } catch (const std::exception& error) {  // bad_alloc outside of any request
      base::log(LogLevel::error, "TCPStore server: {}", error.what());
    }
  }
}

/// One round of events. @return false to stop.
bool StoreServer::Impl::turn() {
  std::array<epoll_event, 128> events;
  const int count =
      ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), next_deadline().poll_timeout_ms());
  if (count < 0 && errno != EINTR) throw base::system_error("waiting for clients of the TCPStore", errno);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const int fd = event.data.fd;
    if (fd == stop.fd()) return false;
    if (Connection* const connection = find(fd)) {
      react(*connection, event.events);
    } else {
      const auto listens = [fd](const base::UniqueFd& socket) { return socket.get() == fd; };
      // otherwise a connection that was closed in this round
      if (std::any_of(listeners.sockets.begin(), listeners.sockets.end(), listens)) accept_clients(fd);
    }
    flush();
  }
  drop_expired();
  if (!accepting && accept_again.expired()) resume_accepting();
  if (!parked.empty()) {
    drop_stalled();
    resume_parked();
  }
  flush();
  return true;
}

void StoreServer::Impl::react(Connection& connection, std::uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !send_some(connection)) return drop(connection, "the connection broke");
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) return;
  if (connection.parked) return drop(connection, "the connection broke");  // it is watched for nothing else
  receive(connection);
}

void StoreServer::Impl::accept_clients(int listener) {
  for (int i = 0; i < kAcceptBurst && accepting; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    base::UniqueFd fd{::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!fd) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EMFILE || errno == ENFILE) {
        if (!base::client_waits(listener) || !make_room(listener)) return;
      } else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != EPERM) {
        return pause_accepting();  // ENOMEM, ENOBUFS, or another error that may persist
      }
      continue;  // the others concern one client, which is gone
    }
    if (const auto peer = Endpoint::of(address)) take_in(std::move(fd), *peer);
  }
}

void StoreServer::Impl::take_in(base::UniqueFd fd, const Endpoint& peer) {
  const bool here = is_own_host(peer.address);
  if (here && !is_ours(fd.get(), peer)) return;
  if (!here && !options.key) {
    return refusals.post(fmt::format(
        "refused a connection from {}: it is no address of this host, and the job runs on this one only", peer.text()));
  }
  if (!here && pending.num_unadmitted() >= std::max<std::size_t>(options.max_unadmitted, 1)) {
    refuse(*find(*pending.eviction_candidate()),
           "there are too many connections of which it is not known whose they are");
  }
  const int number = fd.get();
  const auto slot = static_cast<std::size_t>(number);
  if (slot >= connections.size()) connections.resize(slot + 1);
  auto connection = std::make_unique<Connection>(std::move(fd), ++last_serial, peer, options.limits.request_bytes);
  connection->admitted = here;
  if (!options.key) connection->stage = Stage::client;
  watch(number);
  openings.push_back({.fd = number, .serial = connection->serial, .limit = Deadline::after(options.silence_limit)});
  pending.add(connection->serial,
              {.fd = number,
               .deadline = Deadline::after(options.validation_limit),
               .source = base::source_of(peer.address.bytes())},
              here);
  connections[slot] = std::move(connection);
}

/// No descriptors are left: closes a pending connection, else the one to be accepted. @return whether to go on
/// accepting.
bool StoreServer::Impl::make_room(int listener) {
  if (const auto oldest = pending.eviction_candidate()) {
    refuse(*find(*oldest), "this process has no descriptor left (ulimit -n), and it has not sent VALIDATE");
    return true;
  }
  spare.reset();
  base::UniqueFd refused{::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (refused) refusals.post("refused a connection: this process has no descriptor left for it (ulimit -n)");
  refused.reset();
  spare = spare_descriptor();
  if (spare) return true;
  pause_accepting();
  return false;
}

void StoreServer::Impl::drop(Connection& connection, std::string_view why) {
  const int fd = connection.fd.get();
  base::log(LogLevel::debug, "TCPStore server: closing client {}: {}", connection.serial, why);
  // Not by closing alone: a process that was forked just now holds the socket until its execve(2). Its events would be
  // taken for those of the next connection with this descriptor (epoll(7)), and its peer would not see the end.
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  ::shutdown(fd, SHUT_RDWR);
  // closed at the end of this scope, so that its descriptor is not reused before the key space forgets it
  const std::unique_ptr<Connection> closed = std::move(connections[static_cast<std::size_t>(fd)]);
  pending.remove(closed->serial);
  unread_bytes -= closed->counted_bytes;
  if (closed->large) --large_requests;
  witnesses.settled(closed->serial);
  keys.forget(fd, *this);
  if (closed->resident) lose_witness(fd);
}

void StoreServer::Impl::drop_expired() {
  for (; !openings.empty() && openings.front().limit.expired(); openings.pop_front()) {
    Connection* const connection = find(openings.front().fd);
    if (connection != nullptr && connection->serial == openings.front().serial && connection->silent)
      drop(*connection, "it says nothing");
  }
  while (const auto fd = pending.expired()) {
    Connection& connection = *find(*fd);
    if (connection.stage == Stage::asking) {
      refuse(connection,
             fmt::format("its host did not say within {} ms whose it is", options.validation_limit.count()));
    } else {
      drop(connection, "no VALIDATE in time");
    }
  }
}

void StoreServer::Impl::pause_accepting() {
  accepting = false;
  accept_again = Deadline::after(kAcceptPause);
  for (const base::UniqueFd& socket : listeners.sockets) watch(socket.get(), 0, EPOLL_CTL_MOD);
}

void StoreServer::Impl::resume_accepting() {
  if (!spare) spare = spare_descriptor();
  for (const base::UniqueFd& socket : listeners.sockets) watch(socket.get(), EPOLLIN, EPOLL_CTL_MOD);
  accepting = true;
}

Deadline StoreServer::Impl::next_deadline() {
  Deadline next = Deadline::after(parked.empty() ? std::chrono::milliseconds{kLongestSleep} : kStallCheck);
  if (const auto first = pending.next_deadline()) next = earlier(next, *first);
  if (!openings.empty()) next = earlier(next, openings.front().limit);
  return accepting ? next : earlier(next, accept_again);
}

Connection* StoreServer::Impl::find(int fd) const {
  const auto slot = static_cast<std::size_t>(fd);
  return slot < connections.size() ? connections[slot].get() : nullptr;
}

void StoreServer::Impl::watch(int fd, std::uint32_t events, int operation) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (::epoll_ctl(epoll.get(), operation, fd, &event) != 0) {
    throw base::system_error("watching a socket of the TCPStore", errno);
  }
}

StoreServer::StoreServer(const StoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}

StoreServer::~StoreServer() = default;

std::uint16_t StoreServer::port() const { return impl_->listeners.port; }

int StoreServer::refusals_fd() const { return impl_->refusals.fd(); }

std::vector<std::string> StoreServer::take_refusals() const { return impl_->refusals.take(); }

}  // namespace ddp::store_server
