// The listening sockets of a TCPStore server: several addresses with one port.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::store_server {

struct Listeners {
  std::vector<base::UniqueFd> sockets;
  std::uint16_t port = 0;
};

/// Both ends are in it.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listens on all @p addresses (numeric; none: [::] for IPv6 and IPv4, else 0.0.0.0) at @p port, or, where that is 0,
/// at one that is free on all of them: one of @p range, tried from a random one on, else one that the kernel chooses.
/// Sockets are non-blocking; those accepted from them send without delay (TCP_NODELAY). Throws Error naming the
/// address, the port or the range: system, or invalid_argument.
Listeners listen_on(const std::vector<std::string>& addresses, std::uint16_t port,
                    std::optional<PortRange> range = std::nullopt);

}  // namespace ddp::store_server
