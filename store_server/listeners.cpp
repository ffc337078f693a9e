#include "store_server/listeners.hpp"

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::store_server {
namespace {

/// A port that is free on the first address may be in use on another.
constexpr int kPortAttempts = 16;

/// Empty when the port is in use.
base::UniqueFd listen_at(const std::string& address, std::uint16_t port, bool only_v6) {
  const std::string attempted = fmt::format("listening on {} port {} for clients of the TCPStore", address, port);
  const base::AddressList found = base::resolve(address, port, AI_NUMERICHOST | AI_PASSIVE, attempted);
  base::UniqueFd fd = base::listen_at(*found, only_v6);
  if (!fd && errno != EADDRINUSE) throw base::system_error(attempted, errno);
  return fd;
}

[[noreturn]] void throw_in_use(const std::string& address, std::uint16_t port) {
  throw base::system_error(fmt::format("listening on {} port {} for clients of the TCPStore", address, port),
                           EADDRINUSE, "choose another port, or 0 for a free one");
}

/// "::", or "0.0.0.0" where the host has no IPv6.
std::string everywhere() {
  try {
    listen_at("::", 0, false);
    return "::";
  } catch (const Error&) {
    return "0.0.0.0";
  }
}

bool is_v4(const std::string& address) { return address.find(':') == std::string::npos; }

struct Attempt {
  Listeners listeners;
  std::string in_use{};  ///< the address on which the port is not free; empty: success
};

Attempt listen_on_all(const std::vector<std::string>& addresses, std::uint16_t port) {
  // "::" accepts IPv4 clients, too, which an IPv4 socket beside it would collide with
  const bool only_v6 = std::any_of(addresses.begin(), addresses.end(), is_v4);
  Attempt attempt{.listeners = {.port = port}};
  for (const std::string& address : addresses) {
    base::UniqueFd fd = listen_at(address, attempt.listeners.port, only_v6);
    if (!fd) {
      attempt.in_use = address;
      break;
    }
    attempt.listeners.port = base::local_port(fd.get());
    attempt.listeners.sockets.push_back(std::move(fd));
  }
  return attempt;
}

/// From a random port on, so that servers that start together rarely collide.
Listeners listen_in(const std::vector<std::string>& addresses, PortRange range) {
  const std::string attempted = fmt::format("listening on {} at a port from {} to {} for clients of the TCPStore",
                                            fmt::join(addresses, ", "), range.first, range.last);
  if (range.first == 0 || range.first > range.last) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = fmt::format("'{}-{}' is not a range of ports", range.first, range.last)}};
  }
  const unsigned count = static_cast<unsigned>(range.last) - range.first + 1;
  const unsigned begin = std::random_device{}() % count;
  for (unsigned i = 0; i < count; ++i) {
    Attempt attempt = listen_on_all(addresses, static_cast<std::uint16_t>(range.first + (begin + i) % count));
    if (attempt.in_use.empty()) return std::move(attempt.listeners);
  }
  throw Error{{.code = ErrorCode::system,
               .attempted = attempted,
               .cause = count == 1 ? "it is in use" : fmt::format("all {} are in use", count),
               .native = base::errno_name(EADDRINUSE),
               .hint = "choose a wider range, or free one of these ports"}};
}

}  // namespace

Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port, std::optional<PortRange> range) {
  std::vector<std::string> distinct;
  for (const std::string& address : addresses) {
    if (std::find(distinct.begin(), distinct.end(), address) == distinct.end()) distinct.push_back(address);
  }
  if (distinct.empty()) distinct.push_back(everywhere());
  if (port == 0 && range) return listen_in(distinct, *range);
  for (int tries = 1;; ++tries) {
    Attempt attempt = listen_on_all(distinct, port);
    if (attempt.in_use.empty()) return std::move(attempt.listeners);
    if (port != 0 || tries == kPortAttempts) throw_in_use(attempt.in_use, attempt.listeners.port);
  }
}

}  // namespace ddp::store_server
