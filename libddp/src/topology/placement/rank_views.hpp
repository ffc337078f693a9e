// The machine as each rank of a node sees it: a device cgroup may give each task GPUs of its own (Slurm's
// ConstrainDevices with --gpus-per-task), which CUDA then numbers from 0 in every task.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ddp/topology.hpp>

#include "topology/placement/rank_resources.hpp"

namespace ddp::topology {

/// Keeps a reference to the topology that it is made of.
class RankViews {
 public:
  RankViews(const Topology& topology, const std::vector<RankResources>& ranks);

  /// Whether RankResources::gpus tell ranks apart. Otherwise every view is the topology itself.
  bool differ() const { return all_.has_value(); }
  /// Visible are the GPUs that some rank may use.
  const Topology& all() const { return all_ ? *all_ : topology_; }
  /// Visible are this rank's. GPUs have the same indices in each view.
  const Topology& of(std::size_t local_rank) const { return differ() ? own_.at(local_rank) : topology_; }

 private:
  const Topology& topology_;
  std::optional<Topology> all_;
  std::vector<Topology> own_;
};

}  // namespace ddp::topology
