// Which of several networks the ranks of a job use: a pure function of all nodes' candidates, equal on every rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topology/network/interface_candidates.hpp"

namespace ddp::topology {

/// An IP network: "10.1.0.0/16".
struct Subnet {
  bool ipv6 = false;
  int prefix_length = 0;
  std::array<std::uint8_t, 16> network{};

  /// Nothing unless the text is a numeric address.
  static std::optional<Subnet> of(const InterfaceAddress& address);
  std::string to_string() const;
  friend auto operator<=>(const Subnet&, const Subnet&) = default;
};

struct Agreement {
  std::optional<Subnet> subnet;  ///< nothing: no subnet is on all nodes; each uses the address that routes
  std::string reason;            ///< one sentence about the subnet
  std::vector<std::string> alternatives{};
};

/// @param nodes the candidates of each node, by node number; none is empty.
/// Of the subnets in which every node has a candidate and no two nodes have the same address (which host-only networks
/// have), the best: RDMA fabrics first, then the one that routes to the peers on most nodes, then the fastest. Where
/// every node has a route to the peers, a subnet that is neither a fabric nor routed over on any node is not taken.
Agreement agree(const std::vector<std::vector<CandidateAddress>>& nodes);

/// Position of the address that a rank with these candidates uses.
std::size_t pick(std::span<const CandidateAddress> candidates, const Agreement& agreement);

}  // namespace ddp::topology
