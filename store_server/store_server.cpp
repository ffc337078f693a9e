#include "store_server/store_server.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/system_error.hpp"
#include "base/wake_event.hpp"
#include "store_server/admission.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/connection.hpp"
#include "store_server/key_space.hpp"
#include "store_server/listeners.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/pending_connections.hpp"
#include "store_server/store_protocol.hpp"

namespace ddp::store_server {
namespace {

using base::LogLevel;

/// A client that sends requests with more unread answers than this does not read them.
constexpr std::size_t kMostUnreadBytes = std::size_t{64} * 1024 * 1024;
/// Received per call: more than most requests; a value of 8 MiB takes 128 calls.
constexpr std::size_t kReceiveBytes = std::size_t{64} * 1024;
/// Connections accepted before clients are served again.
constexpr int kAcceptBurst = 64;
/// Pause in accepting when the host lacks resources.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLongestSleep{60};

base::UniqueFd spare_descriptor() { return base::UniqueFd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}; }

}  // namespace

struct StoreServer::Impl final : private Outboxes {
  explicit Impl(const StoreServerOptions& options)
      : admission({.allowed = options.allowed_clients,
                   .by_proof = !options.admission_secret.empty(),
                   .loopback = options.admit_loopback}),
        validation_limit(options.validation_limit),
        max_unadmitted(std::max<std::size_t>(options.max_unadmitted, 1)),
        listeners(listen_on(options.listen_addresses, options.port, options.port_range)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        spare(spare_descriptor()) {
    if (!options.admission_secret.empty()) expected_request = admission_message(options.admission_secret);
    if (!epoll) throw base::system_error("starting the TCPStore server", errno);
    watch(stop.fd());
    for (const base::UniqueFd& socket : listeners.sockets) watch(socket.get());
    thread = base::start_thread([this] { serve(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() override {
    stop.ring();
    thread.join();
  }

  std::uint16_t port() const { return listeners.port; }

 private:
  void serve() noexcept;
  bool turn();
  void accept_clients(int listener);
  bool make_room(int listener);
  void add_connection(base::UniqueFd fd, const PeerAddress& peer, bool admitted);
  void receive(Connection& connection);
  void read_opening(Connection& connection);
  void admit(Connection& requester);
  void answer(Connection& connection, const Request& request);
  bool send_some(Connection& connection) noexcept;
  void flush();
  void drop(Connection& connection, std::string_view why);
  void drop_expired();
  void pause_accepting();
  void resume_accepting();
  Deadline next_deadline();

  std::string& outbox(ClientId client) override;
  Connection* find(int fd) const;
  void watch(int fd, std::uint32_t events = EPOLLIN, int operation = EPOLL_CTL_ADD);

  Admission admission;
  std::optional<AdmissionMessage> expected_request;  ///< empty: the server has no secret
  std::chrono::milliseconds validation_limit;
  std::size_t max_unadmitted;
  Listeners listeners;
  base::UniqueFd epoll;
  base::WakeEvent stop;
  base::UniqueFd spare;  ///< closed for a moment when no descriptor is left, to accept and close a connection
  KeySpace keys;
  std::vector<std::unique_ptr<Connection>> connections;  ///< by descriptor, which is the ClientId
  PendingConnections pending;
  std::vector<int> to_flush;
  std::array<char, kReceiveBytes> received;
  std::uint64_t last_serial = 0;
  bool accepting = true;
  bool warned = false;  ///< about a client whose address was not admitted
  Deadline accept_again = Deadline::after(std::chrono::seconds(0));
  std::thread thread;  ///< last: it uses the others
};

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
      if ((event.events & EPOLLOUT) != 0 && !send_some(*connection)) {
        drop(*connection, "the connection broke");
      } else if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
        receive(*connection);
      }
    } else {
      const auto listens = [fd](const base::UniqueFd& socket) { return socket.get() == fd; };
      // otherwise a connection that was closed in this round
      if (std::any_of(listeners.sockets.begin(), listeners.sockets.end(), listens)) accept_clients(fd);
    }
    flush();
  }
  drop_expired();
  if (!accepting && accept_again.expired()) resume_accepting();
  flush();
  return true;
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
    const auto peer = PeerAddress::of(address);
    const bool admitted = peer && admission.admits(*peer);
    if (!peer || (!admitted && !expected_request)) {
      base::log(LogLevel::info, "TCPStore server: refused a client from {}, which is not of this job",
                peer ? peer->text() : std::string{"an unknown address"});
      continue;
    }
    if (!admitted && pending.num_unadmitted() >= max_unadmitted) {
      drop(*find(*pending.eviction_candidate()), "too many connections from addresses that are not admitted");
    }
    add_connection(std::move(fd), *peer, admitted);
  }
}

/// No descriptors are left: closes a pending connection, else the one to be accepted. @return whether to go on
/// accepting.
bool StoreServer::Impl::make_room(int listener) {
  if (const auto oldest = pending.eviction_candidate()) {
    drop(*find(*oldest), "no descriptor is left, and it has not sent VALIDATE");
    return true;
  }
  spare.reset();
  base::UniqueFd refused{::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (refused) base::log(LogLevel::warning, "TCPStore server: refused a client: no descriptor is left (ulimit -n)");
  refused.reset();
  spare = spare_descriptor();
  if (spare) return true;
  pause_accepting();
  return false;
}

void StoreServer::Impl::add_connection(base::UniqueFd fd, const PeerAddress& peer, bool admitted) {
  const int number = fd.get();
  const auto slot = static_cast<std::size_t>(number);
  if (slot >= connections.size()) connections.resize(slot + 1);
  auto connection = std::make_unique<Connection>();
  connection->fd = std::move(fd);
  connection->serial = ++last_serial;
  connection->peer = peer;
  connection->stage = expected_request ? Stage::accepted : Stage::client;
  watch(number);
  pending.add(connection->serial, number, Deadline::after(validation_limit), admitted);
  connections[slot] = std::move(connection);
}

void StoreServer::Impl::receive(Connection& connection) {
  if (connection.stage != Stage::client) return read_opening(connection);
  const ssize_t count = ::recv(connection.fd.get(), received.data(), received.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (count <= 0) return drop(connection, count == 0 ? "closed by the client" : "the connection broke");
  const bool was_pending = !connection.parser.validated();
  try {
    connection.parser.feed({received.data(), static_cast<std::size_t>(count)},
                           [&](const Request& request) { answer(connection, request); });
  } catch (const std::exception& error) {  // a protocol violation, or bad_alloc
    send_some(connection);
    return drop(connection, error.what());
  }
  if (was_pending && connection.parser.validated()) pending.remove(connection.serial);
}

/// Tells a client from an admission request, where the server has a secret.
void StoreServer::Impl::read_opening(Connection& connection) {
  if (connection.stage == Stage::held) return drop(connection, "closed by the client before its address was admitted");
  if (connection.stage == Stage::answered) return drop(connection, "admission request answered");
  const Opening opening = connection.read_opening(*expected_request);
  const bool has_begun = opening == Opening::client || opening == Opening::neither;
  if (opening == Opening::valid_request) {
    admit(connection);
  } else if (has_begun && admission.admits(connection.peer)) {
    connection.stage = Stage::client;
    receive(connection);
  } else if (opening == Opening::client) {
    connection.stage = Stage::held;
    watch(connection.fd.get(), EPOLLRDHUP, EPOLL_CTL_MOD);
  } else if (opening == Opening::invalid_request) {
    base::log(LogLevel::info, "TCPStore server: a client from {} showed a wrong secret", connection.peer.text());
    drop(connection, "wrong secret");
  } else if (opening != Opening::incomplete) {
    drop(connection, "closed by the client, or neither a client nor an admission request");
  }
}

/// Serves the held clients from the address of @p requester, and admits later ones.
void StoreServer::Impl::admit(Connection& requester) {
  const PeerAddress peer = requester.peer;
  admission.admit(peer);
  requester.stage = Stage::answered;
  // The client closes, so that TIME_WAIT does not stay with the server's port.
  if (::send(requester.fd.get(), &kAdmissionGranted, sizeof kAdmissionGranted, MSG_NOSIGNAL) !=
      sizeof kAdmissionGranted) {
    drop(requester, "the connection broke");
  }
  for (const int fd : pending.unadmitted()) {
    Connection& connection = *find(fd);
    if (connection.peer != peer) continue;
    pending.admit(connection.serial);
    if (connection.stage != Stage::held) continue;
    connection.stage = Stage::client;
    watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    receive(connection);  // now: its VALIDATE has arrived, and its deadline may be near
  }
}

void StoreServer::Impl::answer(Connection& connection, const Request& request) {
  if (connection.unread() > kMostUnreadBytes && (!send_some(connection) || connection.unread() > kMostUnreadBytes)) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "answering a client of the TCPStore",
                 .cause = "it keeps sending requests without reading the answers",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  keys.apply(connection.fd.get(), request, *this);
}

/// Sends what the kernel takes of the outbox. False when the client is gone.
bool StoreServer::Impl::send_some(Connection& connection) noexcept {
  if (!connection.send_some()) return false;
  const bool more = connection.unread() > 0;
  if (more != connection.writing) {
    connection.writing = more;
    epoll_event event{.events = more ? EPOLLIN | EPOLLOUT : EPOLLIN, .data = {.fd = connection.fd.get()}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, connection.fd.get(), &event) != 0) return false;
  }
  return true;
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

void StoreServer::Impl::drop(Connection& connection, std::string_view why) {
  const int fd = connection.fd.get();
  base::log(LogLevel::debug, "TCPStore server: closing client {}: {}", connection.serial, why);
  // closed at the end of this scope, so that its descriptor is not reused before the key space forgets it
  const std::unique_ptr<Connection> closed = std::move(connections[static_cast<std::size_t>(fd)]);
  pending.remove(connection.serial);
  keys.forget(fd, *this);
}

void StoreServer::Impl::drop_expired() {
  while (const auto fd = pending.expired()) {
    Connection& connection = *find(*fd);
    if (connection.stage == Stage::held) {
      // one warning only, since any host could fill the log
      base::log(warned ? LogLevel::debug : LogLevel::warning,
                "TCPStore server: closing a client from {} after {} ms: no admission request came from that address",
                connection.peer.text(), validation_limit.count());
      warned = true;
    }
    drop(connection, "no VALIDATE in time, or its address was not admitted");
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
  Deadline next = Deadline::after(kLongestSleep);
  if (const auto first = pending.next_deadline()) next = earlier(next, *first);
  return accepting ? next : earlier(next, accept_again);
}

std::string& StoreServer::Impl::outbox(ClientId client) {
  Connection& connection = *find(client);
  if (!connection.queued) {
    to_flush.push_back(client);
    connection.queued = true;
  }
  return connection.outbox;
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

std::uint16_t StoreServer::port() const { return impl_->port(); }

}  // namespace ddp::store_server
