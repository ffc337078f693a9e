// The listening sockets of a TCPStore server: several addresses, one port.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::store_server {

struct Listeners {
  std::vector<base::UniqueFd> sockets{};
  std::uint16_t port = 0;
};

/// Inclusive.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listens on all @p addresses (numeric; none: [::] for IPv6 and IPv4, else 0.0.0.0) at @p port. Port 0: one that is
/// free on all of them, of @p range from a random one on, else chosen by the kernel. Sockets are non-blocking; accepted
/// ones inherit TCP_NODELAY. Throws Error(system or invalid_argument) naming the address, port or range.
Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port,
                    std::optional<PortRange> range = std::nullopt);

}  // namespace ddp::store_server
