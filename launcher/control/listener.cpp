// The accepting side of the handshake, as an event loop of its own inside the caller's.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/system_error.hpp"
#include "control/greeting.hpp"
#include "control/socket_address.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher::control {
namespace {

using Clock = Deadline::Clock;

constexpr std::size_t kMaxUnproven = 64;
// For a handshake between busy hosts, which a crowd of pending connections must not cut short.
constexpr std::chrono::seconds kProtected{1};
constexpr std::chrono::seconds kLogPause{1};
constexpr std::chrono::seconds kDescriptorPause{1};
constexpr int kAcceptsPerTurn = 64;

/// A connection that has not authenticated yet.
struct Unproven {
  base::UniqueFd socket;
  std::string peer;
  Clock::time_point since;
  std::array<std::byte, std::max(kGreetingBytes, kProofBytes)> received{};
  std::size_t size = 0;
  std::optional<Greeting> theirs = {};
  Greeting ours = Greeting::fresh();

  std::size_t wanted() const { return theirs ? kProofBytes : kGreetingBytes; }
};

base::UniqueFd bound_socket(const addrinfo& address, const std::string& attempted) {
  base::UniqueFd fd{::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd) throw base::system_error(attempted, errno);
  const int on = 1;
  const int off = 0;
  // A port whose former connections are in TIME_WAIT can be reused at once.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // "::" takes IPv4 peers, too, whatever net.ipv6.bindv6only says; fails for IPv4 sockets only.
  ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int number = errno;
    std::string hint;
    if (number == EADDRINUSE)
      hint = "another program on this host uses the port, perhaps another job; choose another port";
    if (number == EACCES) hint = "ports below 1024 are for root; choose another port";
    if (number == EADDRNOTAVAIL) hint = "the address is not one of this host's";
    throw base::system_error(attempted, number, std::move(hint));
  }
  return fd;
}

base::UniqueFd listening_socket(const std::string& address, std::uint16_t port) {
  const std::string attempted = fmt::format("listening for agents at {}:{}", address.empty() ? "*" : address, port);
  const auto listen_at = [&](const std::string& host) {
    return bound_socket(*resolve(host, port, AI_PASSIVE, attempted), attempted);
  };
  if (!address.empty()) return listen_at(address);
  try {
    return listen_at("::");
  } catch (const Error& error) {
    if (error.native() == base::errno_name(EADDRINUSE) || error.native() == base::errno_name(EACCES)) throw;
  }
  return listen_at("0.0.0.0");  // there is no IPv6
}

}  // namespace

struct Listener::Impl {
  using Place = std::list<Unproven>::iterator;

  Secret secret;
  std::chrono::milliseconds patience;
  base::UniqueFd listening;
  EventLoop loop;
  std::list<Unproven> unproven;  // the oldest first
  std::vector<Connection> proven;
  bool accepting = false;
  bool crowded = false;           // not accepting: too many are unproven
  Clock::time_point pause_until;  // of accepting
  Clock::time_point log_again;
  int unlogged = 0;

  Impl(const Secret& key, base::UniqueFd socket, std::chrono::milliseconds limit)
      : secret(key), patience(limit), listening(std::move(socket)) {}

  void accept_again() {
    const bool room = crowded && unproven.size() < kMaxUnproven;
    if (accepting || !listening || (Clock::now() < pause_until && !room)) return;
    loop.watch(listening.get(), [this] { accept_some(); });
    accepting = true;
    crowded = false;
  }
  void pause(Clock::time_point until) {
    loop.forget(listening.get());
    accepting = false;
    pause_until = until;
  }
  void accept_some();
  void add(base::UniqueFd socket);
  void read(Place place);
  /// A whole greeting or proof has arrived. @return whether the handshake is complete.
  bool advance(Unproven& connection);
  void drop(Place place, const std::string& why);
  void log_drop(const std::string& peer, const std::string& why);
};

void Listener::Impl::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (unproven.size() >= kMaxUnproven) {
      const auto protected_until = unproven.front().since + kProtected;
      if (Clock::now() < protected_until) {
        crowded = true;
        return pause(protected_until);
      }
    }
    base::UniqueFd socket{::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (socket) {
      if (unproven.size() >= kMaxUnproven) drop(unproven.begin(), "others wait, and it has not authenticated");
      add(std::move(socket));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      const int number = errno;
      if (!base::client_waits(listening.get())) return;
      log_drop("an agent",
               fmt::format("{} [{}]; it will be tried again", base::errno_text(number), base::errno_name(number)));
      return pause(Clock::now() + kDescriptorPause);
    }  // else it has gone already
  }
}

void Listener::Impl::add(base::UniqueFd socket) {
  std::string peer;
  try {
    peer = to_text(peer_address(socket.get()));
  } catch (const Error&) {
    return;  // it has gone already
  }
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int fd = socket.get();
  unproven.push_back({.socket = std::move(socket), .peer = std::move(peer), .since = Clock::now()});
  loop.watch(fd, [this, place = std::prev(unproven.end())] { read(place); });
}

void Listener::Impl::read(Place place) {
  Unproven& connection = *place;
  for (;;) {
    const auto rest = std::span{connection.received}.first(connection.wanted()).subspan(connection.size);
    const ssize_t received = ::recv(connection.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (received <= 0) return drop(place, "it disconnected before authenticating");
    connection.size += static_cast<std::size_t>(received);
    try {
      if (advance(connection)) {
        loop.forget(connection.socket.get());
        proven.emplace_back(std::move(connection.socket), std::move(connection.peer));
        unproven.erase(place);
        return;
      }
    } catch (const Error& error) {
      return drop(place, error.cause());
    }
  }
}

bool Listener::Impl::advance(Unproven& connection) {
  const auto refuse = [](std::string cause) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "accepting an agent",
                 .cause = std::move(cause),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  };
  // Less than the send buffer of any new socket.
  const auto answer = [&](std::span<const std::byte> bytes) {
    const ssize_t sent = ::send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(bytes.size())) refuse("it cannot be answered");
  };
  if (!connection.theirs) {
    connection.theirs = parse_greeting(std::span{connection.received}.first(connection.size));
    if (!connection.theirs) return false;
    answer(encode(connection.ours));
    if (connection.theirs->version != kProtocolVersion) {
      refuse(fmt::format("it speaks version {} of ddprun's protocol; this is version {}", connection.theirs->version,
                         kProtocolVersion));
    }
    connection.size = 0;
    return false;
  }
  if (connection.size < kProofBytes) return false;
  Proof proof{};
  std::copy_n(connection.received.begin(), kProofBytes, proof.begin());
  if (!proves(proof, secret, HandshakeSide::connecting, *connection.theirs, connection.ours)) {
    refuse("it does not know the job's secret");
  }
  answer(prove(secret, HandshakeSide::accepting, *connection.theirs, connection.ours));
  return true;
}

void Listener::Impl::drop(Place place, const std::string& why) {
  log_drop(place->peer, why);
  loop.forget(place->socket.get());
  unproven.erase(place);
}

void Listener::Impl::log_drop(const std::string& peer, const std::string& why) {
  if (Clock::now() < log_again) {
    ++unlogged;
    return;
  }
  const std::string more = unlogged > 0 ? fmt::format(" (and {} more since the last such line)", unlogged) : "";
  base::log(base::LogLevel::warning, "refused a connection from {}: {}{}", peer, why, more);
  unlogged = 0;
  log_again = Clock::now() + kLogPause;
}

Listener::Listener(const std::string& address, std::uint16_t port, const Secret& secret,
                   std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(secret, listening_socket(address, port), patience)) {
  impl_->accept_again();
}

Listener::~Listener() = default;

std::uint16_t Listener::port() const { return impl_->listening ? base::local_port(impl_->listening.get()) : 0; }

std::vector<int> Listener::fds() const {
  return impl_->listening ? std::vector<int>{impl_->loop.fd()} : std::vector<int>{};
}

std::vector<Connection> Listener::accept_ready() {
  if (!impl_->listening) return {};
  const Clock::time_point now = Clock::now();
  while (!impl_->unproven.empty() && impl_->unproven.front().since + impl_->patience <= now) {
    impl_->drop(impl_->unproven.begin(), fmt::format("it did not authenticate within {} s",
                                                     std::chrono::duration<double>(impl_->patience).count()));
  }
  impl_->accept_again();
  impl_->loop.run_once(Deadline{now});
  impl_->accept_again();  // handshakes that are complete have made room
  return std::exchange(impl_->proven, {});
}

std::optional<Deadline> Listener::next_deadline() const {
  if (!impl_->listening) return std::nullopt;
  std::optional<Deadline> next;
  if (!impl_->unproven.empty()) next = Deadline{impl_->unproven.front().since + impl_->patience};
  if (!impl_->accepting) {
    const Deadline again{impl_->pause_until};
    next = next ? earlier(*next, again) : again;
  }
  return next;
}

void Listener::close() {
  for (const Unproven& connection : impl_->unproven) impl_->loop.forget(connection.socket.get());
  impl_->unproven.clear();
  if (impl_->accepting) impl_->loop.forget(impl_->listening.get());
  impl_->accepting = false;
  impl_->listening.reset();
}

}  // namespace ddp::launcher::control
