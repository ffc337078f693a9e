#include "world/peer_channel.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/byte_stream.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::world {
namespace {

// A peer sends its one small request at once.
constexpr auto kPatience = std::chrono::seconds(5);
// Enough for peers, too few for unauthenticated clients to exhaust a training process's descriptors.
constexpr std::size_t kMostConnections = 128;
// While the table is full, connections that are silent for this long are dropped. Long enough for a peer on a busy
// host, short enough for a peer behind some hundred idle clients.
constexpr auto kPatienceWhenFull = std::chrono::milliseconds(500);
// How long to stop accepting after the process ran out of descriptors.
constexpr auto kDescriptorPause = std::chrono::milliseconds(100);

}  // namespace

struct PeerChannel::Connection {
  base::UniqueFd fd;
  Deadline deadline;
  Deadline deadline_when_full;
  Bytes received;
  Bytes outgoing;
  std::size_t sent = 0;

  bool answering() const { return !outgoing.empty(); }
  Deadline limit(bool full) const { return full && !answering() ? deadline_when_full : deadline; }
};

PeerChannel::PeerChannel(const std::string& address) : listener_(base::listen_tcp(address)) {
  port_ = base::local_port(listener_.get());
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size())) {
    throw base::system_error("starting the peer channel (getrandom)", errno);
  }
  thread_ = base::start_thread([this] { run(); });
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

void PeerChannel::run() {
  std::vector<Connection> connections;
  std::vector<pollfd> entries;
  Deadline accept_from = Deadline::after(std::chrono::seconds(0));
  for (;;) {
    entries.clear();
    entries.push_back({.fd = wake_.fd(), .events = POLLIN, .revents = 0});
    const bool full = connections.size() >= kMostConnections;
    const int pause_ms = accept_from.poll_timeout_ms();
    // poll ignores a negative descriptor
    entries.push_back({.fd = full || pause_ms > 0 ? -1 : listener_.get(), .events = POLLIN, .revents = 0});
    int timeout_ms = pause_ms > 0 ? pause_ms : -1;
    for (const Connection& connection : connections) {
      const short events = connection.answering() ? POLLOUT : POLLIN;
      entries.push_back({.fd = connection.fd.get(), .events = events, .revents = 0});
      const int left_ms = connection.limit(full).poll_timeout_ms();
      timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
    }
    if (::poll(entries.data(), entries.size(), timeout_ms) < 0 && errno != EINTR) {
      base::log(base::LogLevel::error, "the peer channel stops: poll: {}", base::errno_name(errno));
      return;
    }
    if (entries[0].revents != 0) return;
    for (std::size_t i = connections.size(); i-- > 0;) {
      const bool ready = entries[i + 2].revents != 0;
      const bool keep = ready ? advance(connections[i]) : !connections[i].limit(full).expired();
      if (!keep) connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (entries[1].revents != 0 && !accept_new(connections)) accept_from = Deadline::after(kDescriptorPause);
  }
}

bool PeerChannel::accept_new(std::vector<Connection>& connections) {
  while (connections.size() < kMostConnections) {
    base::UniqueFd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!fd) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    connections.push_back({.fd = std::move(fd),
                           .deadline = Deadline::after(kPatience),
                           .deadline_when_full = Deadline::after(kPatienceWhenFull),
                           .received = {},
                           .outgoing = {},
                           .sent = 0});
  }
  return true;
}

bool PeerChannel::advance(Connection& connection) {
  if (!connection.answering()) {
    std::array<std::byte, 4096> chunk;
    const ssize_t got = ::recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.received.insert(connection.received.end(), chunk.begin(), chunk.begin() + got);
    try {
      const auto request = decode_peer_request(connection.received);
      if (!request) return true;
      if (request->token != token_) return false;
      connection.outgoing = answer(*request);
    } catch (const Error& error) {
      base::log(base::LogLevel::debug, "the peer channel drops a connection: {}", error.what());
      return false;
    }
  }
  const auto rest = std::span(connection.outgoing).subspan(connection.sent);
  const ssize_t sent = ::send(connection.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(sent);
  return connection.sent < connection.outgoing.size();
}

Bytes PeerChannel::answer(const PeerRequest& request) {
  const std::lock_guard lock(handlers_mutex_);
  const auto handler = handlers_.find(request.service);
  if (handler == handlers_.end()) return encode(PeerAnswer{.status = PeerStatus::unknown_service, .body = {}});
  try {
    return encode(PeerAnswer{.status = PeerStatus::ok, .body = handler->second(request.body)});
  } catch (const std::exception& error) {
    return encode(PeerAnswer{.status = PeerStatus::failed, .body = base::to_bytes(error.what())});
  }
}

}  // namespace ddp::world
