#include "stream/listening.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::stream {
namespace {

/// A port that is free on the first address may be in use on another.
constexpr int kPortAttempts = 16;

std::string attempt_text(const std::string& address, std::uint16_t port, const ListenOptions& options) {
  return fmt::format("listening on {} port {} for {}", address, port, options.clients);
}

[[noreturn]] void fail(const std::string& attempted, int number) {
  std::string hint;
  if (number == EADDRINUSE)
    hint = "another program on this host uses the port, perhaps another job; choose another port, or 0 for a free one";
  if (number == EACCES) hint = "ports below 1024 are for root; choose another port";
  if (number == EADDRNOTAVAIL) hint = "the address is not one of this host's";
  throw base::system_error(attempted, number, std::move(hint));
}

/// Empty, with errno, where it cannot be.
base::UniqueFd try_address(const std::string& address, std::uint16_t port, bool only_v6, const ListenOptions& options) {
  const int flags = options.names ? AI_PASSIVE : AI_PASSIVE | AI_NUMERICHOST;
  const base::AddressList found = base::resolve(address, port, flags, attempt_text(address, port, options));
  return base::listen_at(*found, only_v6);
}

/// "::", or "0.0.0.0" where the host has no IPv6.
std::string everywhere(const ListenOptions& options) { return try_address("::", 0, false, options) ? "::" : "0.0.0.0"; }

bool is_v4(const std::string& address) { return address.find(':') == std::string::npos; }

struct Attempt {
  Listeners listeners;
  std::string in_use{};  ///< the address on which the port is not free; empty: success
};

Attempt listen_on_all(const std::vector<std::string>& addresses, std::uint16_t port, const ListenOptions& options) {
  // "::" accepts IPv4 clients, too, which an IPv4 socket beside it would collide with
  const bool only_v6 = std::any_of(addresses.begin(), addresses.end(), is_v4);
  Attempt attempt{.listeners = {.port = port}};
  std::optional<std::pair<std::string, int>> unusable;
  for (const std::string& address : addresses) {
    base::UniqueFd fd = try_address(address, attempt.listeners.port, only_v6, options);
    const int number = errno;
    if (fd) {
      attempt.listeners.port = base::local_port(fd.get());
      attempt.listeners.sockets.push_back(std::move(fd));
    } else if (number == EADDRINUSE) {
      attempt.in_use = address;
      return attempt;
    } else {
      // names may have addresses of a kind that this host does not use
      const bool tolerable = options.names && (number == EADDRNOTAVAIL || number == EAFNOSUPPORT);
      if (!tolerable) fail(attempt_text(address, port, options), number);
      unusable = {address, number};
    }
  }
  if (unusable && attempt.listeners.sockets.empty())
    fail(attempt_text(unusable->first, port, options), unusable->second);
  return attempt;
}

/// From a random port on, so that servers that start together rarely collide.
Listeners listen_in(const std::vector<std::string>& addresses, PortRange range, const ListenOptions& options) {
  const std::string attempted = fmt::format("listening on {} at a port from {} to {} for {}",
                                            fmt::join(addresses, ", "), range.first, range.last, options.clients);
  if (range.first == 0 || range.first > range.last) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = fmt::format("'{}-{}' is not a range of ports", range.first, range.last)}};
  }
  const unsigned count = static_cast<unsigned>(range.last) - range.first + 1;
  const unsigned begin = std::random_device{}() % count;
  for (unsigned i = 0; i < count; ++i) {
    const auto port = static_cast<std::uint16_t>(range.first + (begin + i) % count);
    Attempt attempt = listen_on_all(addresses, port, options);
    if (attempt.in_use.empty()) return std::move(attempt.listeners);
  }
  throw Error{{.code = ErrorCode::system,
               .attempted = attempted,
               .cause = count == 1 ? "it is in use" : fmt::format("all {} are in use", count),
               .native = base::errno_name(EADDRINUSE),
               .hint = "choose a wider range, or free one of these ports"}};
}

std::string to_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  std::string_view name{host.data()};
  constexpr std::string_view kMapped = "::ffff:";
  if (name.starts_with(kMapped) && name.find('.') != name.npos) name.remove_prefix(kMapped.size());
  if (name.find(':') == name.npos) return fmt::format("{}:{}", name, port.data());
  return fmt::format("[{}]:{}", name, port.data());
}

}  // namespace

Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port, const ListenOptions& options) {
  std::vector<std::string> distinct;
  for (const std::string& given : addresses) {
    std::string address = given.empty() && options.names ? everywhere(options) : given;
    if (std::find(distinct.begin(), distinct.end(), address) == distinct.end()) distinct.push_back(std::move(address));
  }
  if (distinct.empty()) distinct.push_back(everywhere(options));
  if (port == 0 && options.range) return listen_in(distinct, *options.range, options);
  for (int tries = 1;; ++tries) {
    Attempt attempt = listen_on_all(distinct, port, options);
    if (attempt.in_use.empty()) return std::move(attempt.listeners);
    if (port != 0 || tries == kPortAttempts)
      fail(attempt_text(attempt.in_use, attempt.listeners.port, options), EADDRINUSE);
  }
}

std::string to_text(const sockaddr_storage& address) {
  return to_text(reinterpret_cast<const sockaddr*>(&address),
                 address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

std::string to_text(const addrinfo& address) { return to_text(address.ai_addr, address.ai_addrlen); }

std::string numeric_host(const addrinfo& address) {
  std::array<char, NI_MAXHOST> host{};
  const int status =
      ::getnameinfo(address.ai_addr, address.ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? host.data() : std::string{};
}

sockaddr_storage peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw base::system_error("reading the address of a connection's other end", errno);
  return address;
}

sockaddr_storage local_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw base::system_error("reading the address of a socket", errno);
  return address;
}

}  // namespace ddp::stream
