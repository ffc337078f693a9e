// Chooses the network interface over which this rank is reached: the user's, else the one that routes to the peers.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::world {

struct NetworkInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< numeric; IPv4 where the interface has one
  bool loopback = false;
};

struct InterfaceChoice {
  std::string name;
  std::string address;
  std::string reason;  ///< one sentence
};

/// Interfaces of this host that are up and have a usable address (not IPv6 link-local), in the kernel's order.
std::vector<NetworkInterface> list_interfaces();

/// @param peer_hosts names or addresses of other hosts of the job, as far as known.
/// @param single_node all ranks are on this host: loopback is chosen.
/// Throws Error(invalid_argument), which lists the interfaces there are, when DDP_SOCKET_IFNAME or GLOO_SOCKET_IFNAME
/// names none of them; unavailable when the host has no usable interface.
InterfaceChoice choose_interface(const base::Environment& environment, const std::vector<NetworkInterface>& interfaces,
                                 const std::vector<std::string>& peer_hosts, bool single_node);

}  // namespace ddp::world
