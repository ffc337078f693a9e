#include "world/peer_channel.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"

namespace ddp::world {
namespace {

// A peer sends its one small request at once.
constexpr auto kPatience = std::chrono::seconds(5);
// Connections that have not shown the token, and others. Enough for peers, too few for strangers to exhaust a training
// process's descriptors.
constexpr std::size_t kMostStrangers = 96;
constexpr std::size_t kMostProven = 32;
// Connections accepted before others are looked at again.
constexpr int kAcceptedAtOnce = 32;
// How long to stop accepting after the process ran out of descriptors or memory.
constexpr auto kPause = std::chrono::milliseconds(100);

/// Does not tell by its time how much of the token is right.
bool same(const ChannelToken& a, const ChannelToken& b) {
  std::byte difference{};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace

struct PeerChannel::Connection {
  base::UnsharedFd fd;
  base::ConnectionSource source;
  Deadline deadline;
  bool proven = false;  ///< it has shown the token
  Bytes received{};
  Bytes outgoing{};
  std::size_t sent = 0;

  bool answering() const { return !outgoing.empty(); }
};

PeerChannel::PeerChannel(const std::string& address)
    : busy_(encode(PeerAnswer{.status = PeerStatus::busy})),
      listener_(base::UnsharedFd{base::listen_tcp(address)}),
      strangers_(kMostStrangers) {
  port_ = base::local_port(listener_.get());
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size())) {
    throw base::system_error("starting the peer channel (getrandom)", errno);
  }
  Connections connections;
  connections.reserve(kMostStrangers + kMostProven + 1);  // so that the thread needs no memory for accepting
  thread_ = base::start_thread([this, connections = std::move(connections)]() mutable { run(connections); });
}

PeerChannel::~PeerChannel() {
  wake_.ring();
  thread_.join();
}

void PeerChannel::serve(const std::string& service, Handler handler) {
  const std::lock_guard lock(handlers_mutex_);
  handlers_[service] = std::move(handler);
}

void PeerChannel::unserve(const std::string& service) {
  const std::lock_guard lock(handlers_mutex_);
  handlers_.erase(service);
}

void PeerChannel::run(Connections& connections) {
  std::array<pollfd, 2 + kMostStrangers + kMostProven> entries{};
  Deadline accept_from = Deadline::after(std::chrono::seconds(0));
  for (;;) {
    const int pause_ms = accept_from.poll_timeout_ms();
    entries[0] = {.fd = wake_.fd(), .events = POLLIN, .revents = 0};
    // poll ignores a negative descriptor
    entries[1] = {.fd = pause_ms > 0 ? -1 : listener_.get(), .events = POLLIN, .revents = 0};
    int timeout_ms = pause_ms > 0 ? pause_ms : -1;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      const Connection& connection = connections[i];
      const short events = connection.answering() ? POLLOUT : POLLIN;
      entries[i + 2] = {.fd = connection.fd.get(), .events = events, .revents = 0};
      const int left_ms = connection.deadline.poll_timeout_ms();
      timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
    }
    if (::poll(entries.data(), connections.size() + 2, timeout_ms) < 0 && errno != EINTR) {
      base::log(base::LogLevel::error, "the peer channel stops: poll: {}", base::errno_name(errno));
      return;
    }
    if (entries[0].revents != 0) return;
    for (std::size_t i = connections.size(); i-- > 0;) {
      const bool ready = entries[i + 2].revents != 0;
      const bool keep = ready ? advance(connections[i], connections) : !connections[i].deadline.expired();
      if (!keep) connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (entries[1].revents != 0 && !accept_new(connections)) accept_from = Deadline::after(kPause);
  }
}

std::size_t PeerChannel::count(const Connections& connections, bool proven) {
  return static_cast<std::size_t>(std::count_if(connections.begin(), connections.end(),
                                                [&](const Connection& each) { return each.proven == proven; }));
}

PeerChannel::Connections::iterator PeerChannel::most_crowding(Connections& connections) {
  strangers_.clear();
  for (const Connection& each : connections) {
    if (!each.proven) strangers_.add(each.source);
  }
  return std::find_if(connections.begin(), connections.end(), [source = strangers_.largest()](const Connection& each) {
    return !each.proven && each.source == source;
  });
}

bool PeerChannel::accept_new(Connections& connections) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    base::UniqueFd fd{
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!fd) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    Connection connection{.fd = base::UnsharedFd{std::move(fd)},
                          .source = base::source_of(address),
                          .deadline = Deadline::after(kPatience),
                          .proven = false,
                          .sent = 0};
    // most peers' requests are there already, so that they need no place
    if (!advance(connection, connections)) continue;
    if (!connection.proven && count(connections, false) == kMostStrangers) {
      const auto crowded_out = most_crowding(connections);
      refuse_busy(*crowded_out);
      connections.erase(crowded_out);
    }
    connections.push_back(std::move(connection));
  }
  return true;
}

bool PeerChannel::advance(Connection& connection, const Connections& others) {
  try {
    const bool proven = connection.proven;
    if (!connection.answering() && !receive(connection)) return false;
    if (connection.answering()) {
      const auto rest = std::span(connection.outgoing).subspan(connection.sent);
      const ssize_t sent = ::send(connection.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent > 0) connection.sent += static_cast<std::size_t>(sent);
      if (connection.sent == connection.outgoing.size()) return false;
    }
    if (!connection.proven || proven || count(others, true) < kMostProven) return true;
    if (connection.sent == 0) refuse_busy(connection);
    return false;
  } catch (const std::exception& error) {  // also for want of memory
    base::log(base::LogLevel::debug, "the peer channel drops a connection: {}", error.what());
    return false;
  }
}

bool PeerChannel::receive(Connection& connection) {
  std::array<std::byte, 4096> chunk;
  for (;;) {
    // of strangers, no more than what proves them
    const std::size_t wanted = connection.proven ? chunk.size() : kPeerRequestHeaderBytes - connection.received.size();
    const ssize_t got = ::recv(connection.fd.get(), chunk.data(), wanted, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.received.insert(connection.received.end(), chunk.begin(), chunk.begin() + got);
    if (!connection.proven) {
      const auto token = decode_peer_token(connection.received);
      if (!token) continue;
      if (!same(*token, token_)) return false;
      connection.proven = true;
    }
    if (const auto request = decode_peer_request(connection.received)) {
      connection.outgoing = answer(*request);
      return true;
    }
  }
}

void PeerChannel::refuse_busy(const Connection& connection) const {
  ::send(connection.fd.get(), busy_.data(), busy_.size(), MSG_NOSIGNAL);
  // what has been read does not turn the end of the connection into a reset, which may overtake the answer
  std::array<std::byte, 4096> chunk;
  ::recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
}

Bytes PeerChannel::answer(const PeerRequest& request) {
  const std::lock_guard lock(handlers_mutex_);
  const auto handler = handlers_.find(request.service);
  if (handler == handlers_.end()) return encode(PeerAnswer{.status = PeerStatus::unknown_service});
  try {
    return encode(PeerAnswer{.status = PeerStatus::ok, .body = handler->second(request.body)});
  } catch (const std::exception& error) {
    return encode(PeerAnswer{.status = PeerStatus::failed, .body = base::to_bytes(error.what())});
  }
}

}  // namespace ddp::world
