// Which GPUs the ranks of a node use, from what the launcher left to each of them.
#pragma once

#include <optional>
#include <vector>

#include <ddp/topology.hpp>

#include "topology/placement/rank_resources.hpp"

namespace ddp::topology {

/// The GPUs of the node in the order of the local ranks, for PlacementRequest::gpus. Where ranks were given different
/// ones, each has its first. Without any list, and with more GPUs than ranks, they are in the order of their numbers:
/// nothing tells the program to use others than that of its local rank.
std::optional<std::vector<int>> gpus_of_ranks(const Topology& topology, const std::vector<RankResources>& ranks);

}  // namespace ddp::topology
