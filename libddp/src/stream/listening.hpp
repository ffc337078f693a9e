// Listening sockets at several addresses with one port, and socket addresses as text.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::stream {

struct Listeners {
  std::vector<base::UniqueFd> sockets = {};
  std::uint16_t port = 0;
};

/// Inclusive.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

struct ListenOptions {
  std::string_view clients;             ///< whom it is for, in errors: "agents"
  std::optional<PortRange> range = {};  ///< of ports to choose from, from a random one on; else the kernel chooses
  bool names = false;                   ///< addresses may be names, and some may not be this host's
};

/// Listens on all @p addresses (none, or an empty name: [::] for IPv6 and IPv4, else 0.0.0.0) at @p port. Port 0: one
/// that is free on all of them. Sockets are non-blocking; accepted ones inherit TCP_NODELAY. Throws Error(system or
/// invalid_argument) naming the address, port or range.
Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port, const ListenOptions& options);

/// "10.1.2.3:4711", "[fd00::3]:4711"; IPv4 addresses inside IPv6 ones as IPv4.
std::string to_text(const sockaddr_storage& address);
std::string to_text(const addrinfo& address);
/// "10.1.2.3", "fe80::3%eth0"
std::string numeric_host(const addrinfo& address);

/// Address of the other end, or of this one. Throws Error(system).
sockaddr_storage peer_address(int fd);
sockaddr_storage local_address(int fd);

}  // namespace ddp::stream
