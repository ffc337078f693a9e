// Which network interface the ranks of each node use between nodes: every node says what it has, and the coordinator
// chooses for all of them, so that they agree before the first rank starts.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::launcher {

/// The interfaces of a node that come into question, best first; plain values, to be sent to the coordinator.
struct NodeNetwork {
  std::vector<topology::InterfaceCandidate> candidates;  ///< never empty
  std::string reason;                                    ///< one sentence about the first one
};

/// What a node's ranks use.
struct InterfaceChoice {
  std::string interface;  ///< "eth0"
  std::string address;    ///< numeric
  std::string reason;     ///< one sentence
};

/// Of this node. @param peer_hosts names or addresses of the other nodes. Throws Error as topology::find_candidates.
NodeNetwork read_node_network(const base::Environment& environment, const std::vector<std::string>& peer_hosts);

/// One choice per node, in the same order. Throws Error(invalid_argument) when a node has no candidate.
std::vector<InterfaceChoice> choose_interfaces(const std::vector<NodeNetwork>& nodes);

}  // namespace ddp::launcher
