#include "store_server/listeners.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher::store_server {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// A port that is free on the first address may be taken on another.
constexpr int kPortAttempts = 16;

AddressList resolve(const std::string& address, std::uint16_t port, const std::string& attempted) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status != 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = fmt::format("'{}' is not a numeric address: {}", address, ::gai_strerror(status)),
                 .native = fmt::format("getaddrinfo {}", status),
                 .ranks = {},
                 .hint = {}}};
  }
  return {found, &::freeaddrinfo};
}

/// Empty with errno set to EADDRINUSE when the port is taken.
base::UniqueFd listen_at(const std::string& address, std::uint16_t port, bool only_v6, bool reuse) {
  const std::string attempted = fmt::format("listening on {} port {} for clients of the TCPStore", address, port);
  const AddressList found = resolve(address, port, attempted);
  base::UniqueFd fd{::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd) throw base::system_error(attempted, errno);
  const int on = 1;
  if (found->ai_family == AF_INET6) {
    const int alone = only_v6 ? 1 : 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof alone);
  }
  // A given port may have connections of an earlier server in TIME_WAIT. A port from the kernel has none, and the
  // option would let the kernel give it to two sockets that do not listen yet.
  if (reuse) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // accepted sockets inherit it
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) return {};
    throw base::system_error(attempted, errno);
  }
  return fd;
}

[[noreturn]] void throw_in_use(const std::string& address, std::uint16_t port) {
  throw base::system_error(fmt::format("listening on {} port {} for clients of the TCPStore", address, port),
                           EADDRINUSE, "choose another port, or none to take a free one");
}

Listeners listen_everywhere(std::uint16_t port) {
  Listeners result;
  std::string address = "::";
  base::UniqueFd fd;
  try {
    fd = listen_at(address, port, false, port != 0);
  } catch (const Error&) {  // the host has no IPv6
    address = "0.0.0.0";
    fd = listen_at(address, port, false, port != 0);
  }
  if (!fd) throw_in_use(address, port);
  result.port = base::local_port(fd.get());
  result.sockets.push_back(std::move(fd));
  return result;
}

bool is_v4(const std::string& address) { return address.find(':') == std::string::npos; }

}  // namespace

Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port) {
  if (addresses.empty()) return listen_everywhere(port);
  std::vector<std::string> distinct;
  for (const std::string& address : addresses) {
    if (std::find(distinct.begin(), distinct.end(), address) == distinct.end()) distinct.push_back(address);
  }
  // "::" takes IPv4 clients, too, unless there is an IPv4 socket beside it.
  const bool only_v6 = std::any_of(distinct.begin(), distinct.end(), is_v4);
  for (int attempt = 1;; ++attempt) {
    Listeners result{.sockets = {}, .port = port};
    const std::string* taken = nullptr;
    for (const std::string& address : distinct) {
      base::UniqueFd fd = listen_at(address, result.port, only_v6, port != 0);
      if (!fd) {
        taken = &address;
        break;
      }
      result.port = base::local_port(fd.get());
      result.sockets.push_back(std::move(fd));
    }
    if (taken == nullptr) return result;
    if (port != 0 || attempt == kPortAttempts) throw_in_use(*taken, result.port);
  }
}

}  // namespace ddp::launcher::store_server
