#include "base/address_lookup.hpp"

#include <sys/socket.h>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::base {

AddressList resolve(const std::string& host, std::uint16_t port, int flags, const std::string& attempted) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status == 0) return {found, &freeaddrinfo};
  const bool numeric = (flags & AI_NUMERICHOST) != 0;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = attempted,
               .cause = numeric ? fmt::format("'{}' is not a numeric address: {}", host, gai_strerror(status))
                                : fmt::format("the host name '{}' cannot be resolved: {}", host, gai_strerror(status)),
               .native = fmt::format("getaddrinfo {}", status),
               .ranks = {},
               .hint = numeric ? "" : "check the name, or give an IP address"}};
}

}  // namespace ddp::base
