// How a process comes to its job: from PMIx, PMI-2, a launcher's variables or a parent; and which ranks share a node.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/key_value_store.hpp>
#include <ddp/world.hpp>

#include "base/env_table.hpp"
#include "world/launch_environment.hpp"

namespace ddp::world {

// The node of every rank, and thus local ranks, node ranks and ranks per node.

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

// Connects to the key-value store of the launcher that was detected, and reads where the ranks run.

struct JobConnection {
  LaunchEnvironment launch;
  std::unique_ptr<KeyValueStore> store;
  std::optional<NodeMap> nodes;   ///< nothing if the launcher does not say: then from the endpoint records
  std::optional<int> local_rank;  ///< as the launcher says, to be checked
  std::optional<int> node_rank;   ///< as the launcher says, where it gives no map
  bool single_node = false;       ///< known to run on one node only
};

/// Throws as World::init does. @p forced: InitOptions::launch; DDP_LAUNCH is read when it is empty.
/// @param store_name of the keys in a TCPStore: programs that use it one after the other need different ones
JobConnection connect_job(const base::Environment& environment, std::optional<LaunchSource> forced, Deadline deadline,
                          std::string_view store_name = "ddp");

// Processes that a rank starts inherit its environment, and with it its place in the job, which is taken.

/// Throws Error(invalid_argument), which names both processes, if one that has started this one, at first or second
/// hand, is in the job as the rank that @p environment says this one is. Wrappers that are no ranks, and launchers
/// that a rank starts, are none of these. What cannot be read is passed over. @param proc "/proc".
void refuse_inherited_rank(const base::Environment& environment, LaunchSource source,
                           const std::string& proc = "/proc");

// The process mapping that PMI-2 (PMI_process_mapping) and PMIx (PMIX_ANL_MAP) give: which ranks run on which node.

/// Reads "(vector,(first node,node count,ranks per node),...)", the "vector" mapping of MPICH's PMI specification.
/// Blocks are laid out one after another; when all are used up and ranks are left, they repeat from the first (cyclic
/// placement).
/// @return the node number of each rank in [0, world_size). Node numbers are made dense: 0, 1, ... in ascending order.
/// Throws Error(protocol) for anything that is not such a mapping or does not cover all ranks.
std::vector<int> parse_process_mapping(std::string_view text, int world_size);

}  // namespace ddp::world
