#include "base/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"

namespace ddp::base {
namespace {

[[noreturn]] void throw_timeout(const std::string& what) {
  throw Error{{.code = ErrorCode::timeout,
               .attempted = what,
               .cause = "no answer before the deadline",
               .native = errno_name(ETIMEDOUT)}};
}

[[noreturn]] void throw_lost(const std::string& what, int number) {
  throw Error{{.code = ErrorCode::peer_lost,
               .attempted = what,
               .cause = number == 0 ? "the other side closed the connection" : errno_text(number),
               .native = number == 0 ? "" : errno_name(number)}};
}

// How long an address may keep quiet before the next one is tried beside it (RFC 8305, "Connection Attempt Delay").
constexpr std::chrono::milliseconds kAttemptDelay{250};

/// A socket that is connected or about to be; none, and @p error, when it cannot be.
UniqueFd start_connecting(const addrinfo& address, int& error) {
  UniqueFd fd{::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (fd && (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS)) return fd;
  error = errno;
  return {};
}

int connection_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool would_block(int number) { return number == EAGAIN || number == EWOULDBLOCK; }

}  // namespace

bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, deadline.poll_timeout_ms());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw system_error("waiting on a socket", errno);
    if (ready == 0 && deadline.expired()) return false;
  }
}

void keep_alive(int fd) noexcept {
  constexpr int kIdleSeconds = 5;
  constexpr int kIntervalSeconds = 5;
  constexpr int kProbes = 3;
  constexpr int kUserTimeoutMs = 20'000;
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

bool client_waits(int listening) { return wait_for(listening, POLLIN, Deadline::after(std::chrono::seconds(0))); }

UniqueFd connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline) {
  const std::string attempted = fmt::format("connecting to {}:{}", host, port);
  return connect_first(*resolve(host, port, AI_ADDRCONFIG, attempted, deadline), deadline, attempted);
}

UniqueFd connect_first(const addrinfo& addresses, Deadline deadline, const std::string& attempted) {
  const addrinfo* next = &addresses;
  Deadline next_at = Deadline::after(std::chrono::seconds(0));
  std::vector<UniqueFd> sockets;
  std::vector<pollfd> entries;
  int last_error = 0;
  for (;;) {
    if (next != nullptr && (sockets.empty() || next_at.expired())) {
      UniqueFd fd = start_connecting(*next, last_error);
      next = next->ai_next;
      next_at = Deadline::after(kAttemptDelay);
      if (!fd) continue;
      entries.push_back({.fd = fd.get(), .events = POLLOUT, .revents = 0});
      sockets.push_back(std::move(fd));
    }
    if (sockets.empty()) {
      if (next != nullptr) continue;
      throw system_error(attempted, last_error, {}, ErrorCode::unavailable);
    }
    const Deadline until = next == nullptr ? deadline : earlier(deadline, next_at);
    const int ready = ::poll(entries.data(), entries.size(), until.poll_timeout_ms());
    if (ready < 0 && errno != EINTR) throw system_error(attempted, errno);
    for (std::size_t i = ready > 0 ? sockets.size() : 0; i-- > 0;) {
      if (entries[i].revents == 0) continue;
      const int error = connection_error(sockets[i].get());
      if (error == 0) return std::move(sockets[i]);
      last_error = error;
      next_at = Deadline::after(std::chrono::seconds(0));
      sockets.erase(sockets.begin() + static_cast<std::ptrdiff_t>(i));
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (deadline.expired() && !sockets.empty()) throw_timeout(attempted);
  }
}

UniqueFd listen_tcp(const std::string& address) {
  const std::string attempted = fmt::format("listening on {}", address);
  const AddressList addresses = resolve(address, 0, AI_NUMERICHOST | AI_PASSIVE, attempted);
  UniqueFd fd = listen_at(*addresses);
  if (!fd) throw system_error(attempted, errno);
  return fd;
}

UniqueFd listen_at(const addrinfo& address, bool only_ipv6) noexcept {
  UniqueFd fd{::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd) return fd;
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int alone = only_ipv6 ? 1 : 0;  // whatever net.ipv6.bindv6only says; fails for IPv4 sockets only
  ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof alone);
  // So that connections in TIME_WAIT do not keep a later socket from their port: both need the option. On port 0 it
  // would let the kernel give one port to two sockets that do not listen yet, so it is set after that. The port lies at
  // the same place in both kinds of address (RFC 3493).
  const bool given = reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_port != 0;
  if (given) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
    if (!given) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return fd;
  }
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

std::uint16_t local_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw system_error("reading the port of a listening socket", errno);
  }
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
                                       : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void send_all(int fd, std::span<const std::byte> data, Deadline deadline, const std::string& what) {
  while (!data.empty()) {
    const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<std::size_t>(sent));
    } else if (would_block(errno)) {
      if (!wait_for(fd, POLLOUT, deadline)) throw_timeout(what);
    } else if (errno != EINTR) {
      throw_lost(what, errno);
    }
  }
}

void receive_exactly(int fd, std::span<std::byte> data, Deadline deadline, const std::string& what) {
  while (!data.empty()) {
    const ssize_t received = ::recv(fd, data.data(), data.size(), 0);
    if (received > 0) {
      data = data.subspan(static_cast<std::size_t>(received));
    } else if (received == 0) {
      throw_lost(what, 0);
    } else if (would_block(errno)) {
      if (!wait_for(fd, POLLIN, deadline)) throw_timeout(what);
    } else if (errno != EINTR) {
      throw_lost(what, errno);
    }
  }
}

namespace {

// A resolver with one dead server of two answers after 5 s (resolv.conf(5)).
constexpr std::chrono::seconds kPatience{30};

struct Found {
  int status;
  AddressList addresses;
};

Found look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  return {status, AddressList{status == 0 ? found : nullptr, &freeaddrinfo}};
}

}  // namespace

AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted) {
  return resolve(host, port, flags, attempted, Deadline::after(kPatience));
}

AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted,
                    Deadline deadline) {
  // numeric addresses need neither the resolver nor a thread
  Found found = look_up(host, port, (flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST);
  const bool numeric = (flags & AI_NUMERICHOST) != 0;
  if (found.status != 0 && !numeric) {
    auto answer =
        abandonable_call([=] { return look_up(host, port, flags); }, earlier(deadline, Deadline::after(kPatience)));
    if (!answer) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = attempted,
                   .cause = fmt::format("the resolver does not answer about the host name '{}'", host),
                   .native = errno_name(ETIMEDOUT),
                   .hint = "check the name servers (/etc/resolv.conf, /etc/nsswitch.conf), or give an IP address"}};
    }
    found = *std::move(answer);
  }
  if (found.status == 0) return std::move(found.addresses);
  const char* problem = gai_strerror(found.status);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = attempted,
               .cause = numeric ? fmt::format("'{}' is not a numeric address: {}", host, problem)
                                : fmt::format("the host name '{}' cannot be resolved: {}", host, problem),
               .native = fmt::format("getaddrinfo {}", found.status),
               .hint = numeric ? "" : "check the name, or give an IP address"}};
}

}  // namespace ddp::base
