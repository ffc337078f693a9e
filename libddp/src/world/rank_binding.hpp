// Binds a rank that a launcher without libddp started (srun, mpirun): DDP_BIND. One rank per node reads the topology
// and shares it as XML through the node's part of the key-value store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/key_value_store.hpp>
#include <ddp/world.hpp>

#include "base/env_table.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::world {

/// What this process was bound to, and the variables that suit that.
struct BoundRank {
  Placement placement;
  std::vector<EnvironmentSetting> settings;
};

class RankBinding {
 public:
  /// @param environment must outlive this object. Throws Error(invalid_argument) for a wrong DDP_BIND.
  RankBinding(const base::Environment& environment, int world_size);

  /// Puts what this rank may use, and with @p leader the policy and the topology of its node. Before a fence. Does
  /// nothing without DDP_BIND.
  void publish(KeyValueStore& store, const std::string& key, bool leader);

  /// After the fence: plans the node and binds this process. Nothing without DDP_BIND. Failures are logged: a rank that
  /// is not bound is slow, not wrong.
  /// @param local_ranks the ranks of this node, ascending.
  std::optional<BoundRank> apply(KeyValueStore& store, const std::string& key, const std::vector<int>& local_ranks,
                                 int rank, const topology::SocketInterface& interface, Deadline deadline);

 private:
  const base::Environment& environment_;
  BindPolicy policy_;
  bool alone_;
};

}  // namespace ddp::world
