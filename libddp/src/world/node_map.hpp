// The node of every rank, and thus local ranks, node ranks and ranks per node.
#pragma once

#include <vector>

namespace ddp::world {

/// Immutable. Node numbers are dense, 0 to num_nodes() - 1.
class NodeMap {
 public:
  /// @param node_of node number of each rank; every number from 0 to the largest must occur. Throws
  /// Error(protocol) otherwise.
  explicit NodeMap(std::vector<int> node_of);

  int world_size() const noexcept { return static_cast<int>(node_of_.size()); }
  int num_nodes() const noexcept { return static_cast<int>(ranks_.size()); }
  int node_of(int rank) const { return node_of_.at(static_cast<std::size_t>(rank)); }
  int local_rank_of(int rank) const { return local_rank_.at(static_cast<std::size_t>(rank)); }
  const std::vector<int>& ranks_on(int node) const { return ranks_.at(static_cast<std::size_t>(node)); }

 private:
  std::vector<int> node_of_;
  std::vector<int> local_rank_;
  std::vector<std::vector<int>> ranks_;
};

}  // namespace ddp::world
