// Which network interface ranks use. Between nodes, each node reports what it has and the coordinator chooses for all,
// so they agree before the first rank starts.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "control/messages.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::launcher {

/// The candidate interfaces of a node, best first; plain values, sent to the coordinator.
struct NodeNetwork {
  std::vector<topology::InterfaceCandidate> candidates{};  ///< never empty
  std::string reason{};                                    ///< one sentence about the first one
};

/// As they are sent, and back.
std::vector<control::Interface> interfaces_of(const std::vector<topology::InterfaceCandidate>& candidates);
NodeNetwork network_of(const std::vector<control::Interface>& interfaces);

/// Of this node. @param peer_hosts names or addresses of the other nodes. Throws Error as topology::find_candidates.
NodeNetwork read_node_network(const base::Environment& environment, const std::vector<std::string>& peer_hosts);

/// What the ranks of each node use between nodes, in the same order. Throws Error(invalid_argument) when a node has no
/// candidate.
std::vector<topology::SocketInterface> choose_interfaces(const std::vector<NodeNetwork>& nodes);

/// The interface over which ranks that are all on this host reach each other: the user's, as World::init will take it,
/// else loopback, else none. Throws Error(invalid_argument) when the user named one that is not there.
topology::SocketInterface one_host_interface(const base::Environment& environment);

/// topology::local_interface_warning() of this host.
std::string warn_of_local_interface(const base::Environment& environment, const std::string& chosen);

}  // namespace ddp::launcher
