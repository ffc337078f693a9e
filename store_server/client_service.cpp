// Requests of admitted clients and the answers to them, within the limits of memory.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "store_server/store_server_impl.hpp"

namespace ddp::store_server {
namespace {

/// Capacity that an empty outbox keeps.
constexpr std::size_t kKeptOutboxBytes = std::size_t{64} * 1024;

}  // namespace

bool Connection::send_some() noexcept {
  while (unread() > 0) {
    const ssize_t count = ::send(fd.get(), outbox.data() + sent, unread(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
      moved = Clock::now();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (sent > outbox.size() / 2) {
        outbox.erase(0, sent);
        sent = 0;
      }
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  outbox.clear();
  sent = 0;
  // assigning an empty string would keep the memory
  if (outbox.capacity() > kKeptOutboxBytes) std::string{}.swap(outbox);
  return true;
}

bool is_established(int fd) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
}

void StoreServer::Impl::receive(Connection& connection) {
  switch (connection.stage) {
    case Stage::accepted: return read_opening(connection);
    case Stage::asking: return drop(connection, "closed by the client before its owner was known");
    case Stage::witness: return read_witness(connection);
    case Stage::client: return receive_requests(connection);
  }
}

void StoreServer::Impl::receive_requests(Connection& connection) {
  if (must_wait(connection)) return park(connection);
  const ssize_t count = ::recv(connection.fd.get(), received.data(), received.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (count <= 0) return drop(connection, count == 0 ? "closed by the client" : "the connection broke");
  connection.moved = Connection::Clock::now();
  const bool was_pending = !connection.parser.validated();
  if (was_pending) strangers.heard(connection.serial);
  try {
    connection.parser.feed({received.data(), static_cast<std::size_t>(count)},
                           [&](const Request& request) { answer(connection, request); });
  } catch (const std::exception& error) {  // a protocol violation, a limit, or bad_alloc
    refusals.post(fmt::format("closed the connection from {}: {}", connection.peer.text(), error.what()));
    send_some(connection);
    return drop(connection, error.what());
  }
  if (was_pending && connection.parser.validated()) strangers.remove(connection.serial);
  const bool large = connection.parser.begun_bytes() >= StoreLimits::kLargeBytes;
  if (large != connection.large) {
    // Without a place it is parked when more of it comes.
    if (large && large_requests >= options.limits.large_requests) return;
    connection.large = large;
    large ? ++large_requests : --large_requests;
  }
}

void StoreServer::Impl::answer(Connection& connection, const Request& request) {
  const std::size_t limit = options.limits.answer_bytes;
  if (connection.unread() > limit && (!send_some(connection) || connection.unread() > limit)) {
    throw Error{
        {.code = ErrorCode::protocol,
         .attempted = "answering a client of the TCPStore",
         .cause = fmt::format("it keeps sending requests with {} bytes of answers unread", connection.unread())}};
  }
  keys.apply(connection.fd.get(), request, *this);
  count_unread(connection);
}

std::string& StoreServer::Impl::outbox(ClientId client) {
  Connection& connection = *find(client);
  if (!connection.queued) {
    to_flush.push_back(client);
    connection.queued = true;
  }
  return connection.outbox;
}

std::size_t StoreServer::Impl::room(ClientId client) {
  Connection& connection = *find(client);
  const std::size_t limit = options.limits.answer_bytes;
  if (connection.unread() > 0) send_some(connection);  // a broken one is dropped when it is flushed
  return limit - std::min(limit, connection.unread());
}

/// Sends what the kernel takes of the outbox. False when the client is gone.
bool StoreServer::Impl::send_some(Connection& connection) noexcept {
  if (!connection.send_some()) return false;
  count_unread(connection);
  const bool more = connection.unread() > 0;
  if (more == connection.writing) return true;
  connection.writing = more;
  return set_events(connection);
}

void StoreServer::Impl::flush() {
  // by index: dropping a client may append an answer to another's outbox
  for (std::size_t i = 0; i < to_flush.size(); ++i) {
    Connection* const connection = find(to_flush[i]);
    if (connection == nullptr) continue;
    connection->queued = false;
    if (!send_some(*connection)) drop(*connection, "the connection broke");
  }
  to_flush.clear();
}

bool StoreServer::Impl::set_events(const Connection& connection) noexcept {
  std::uint32_t events = 0;
  if (!connection.parked) events |= EPOLLIN;
  if (connection.writing) events |= EPOLLOUT;
  try {
    loop.change(connection.fd.get(), events);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// ---- memory ----------------

void StoreServer::Impl::count_unread(Connection& connection) noexcept {
  unread_bytes += connection.unread() - connection.counted_bytes;
  connection.counted_bytes = connection.unread();
}

bool StoreServer::Impl::must_wait(const Connection& connection) const {
  if (unread_bytes > options.limits.unread_bytes) return true;
  const bool large = connection.parser.begun_bytes() >= StoreLimits::kLargeBytes;
  return large && !connection.large && large_requests >= options.limits.large_requests;
}

void StoreServer::Impl::park(Connection& connection) {
  connection.parked = true;
  strangers.remove(connection.serial);  // it is not its fault
  parked.push_back(connection.fd.get());
  if (!set_events(connection)) drop(connection, "the connection broke");
}

/// Those that need not wait any more, oldest first.
void StoreServer::Impl::resume_parked() {
  std::deque<int> still;
  for (const int fd : std::exchange(parked, {})) {
    Connection* const connection = find(fd);
    if (connection == nullptr || !connection->parked) continue;
    if (must_wait(*connection)) {
      still.push_back(fd);
      continue;
    }
    connection->parked = false;
    connection->moved = Connection::Clock::now();
    if (!set_events(*connection)) {
      drop(*connection, "the connection broke");
      continue;
    }
    receive(*connection);
    flush();
  }
  parked.insert(parked.begin(), still.begin(), still.end());
}

void StoreServer::Impl::drop_stalled() {
  const auto oldest = Connection::Clock::now() - options.limits.stall;
  for (std::size_t fd = 0; fd < connections.size(); ++fd) {
    Connection* const connection = connections[fd].get();
    if (connection == nullptr || connection->moved > oldest) continue;
    const bool holds_up = connection->large || connection->unread() > 0;
    if (!holds_up) continue;
    refusals.post(fmt::format(
        "closed the connection from {}: for {} s it has neither sent the rest of a request of {} "
        "bytes nor read {} bytes of answers, and others wait for that memory",
        connection->peer.text(), std::chrono::duration_cast<std::chrono::seconds>(options.limits.stall).count(),
        connection->parser.begun_bytes(), connection->unread()));
    drop(*connection, "it blocks other clients");
  }
}

}  // namespace ddp::store_server
