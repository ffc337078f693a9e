// getnameinfo(3), getsockname(2) and getpeername(2) with errors as ddp::Error.
#include "control/socket_address.hpp"

#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"

namespace ddp::launcher::control {
namespace {

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

std::string to_text(const sockaddr_storage& address) {
  return to_text(reinterpret_cast<const sockaddr*>(&address),
                 address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

std::string numeric_host(const addrinfo& address) {
  std::array<char, NI_MAXHOST> host{};
  const int status =
      ::getnameinfo(address.ai_addr, address.ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? host.data() : std::string{};
}

std::string to_text(const addrinfo& address) { return to_text(address.ai_addr, address.ai_addrlen); }

sockaddr_storage peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw base::system_error("reading the address of a connection's other end", errno);
  }
  return address;
}

sockaddr_storage local_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw base::system_error("reading the address of a socket", errno);
  }
  return address;
}

}  // namespace ddp::launcher::control
