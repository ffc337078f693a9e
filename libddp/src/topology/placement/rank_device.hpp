// Which of the CUDA devices that a process sees is its own: for World::device().
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ddp/rank_device.hpp>
#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "topology/placement/option_words.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::topology {

/// What a process knows about itself.
struct RankFacts {
  int local_rank = 0;
  int local_world_size = 1;
  const Placement* placement = nullptr;  ///< if World::init bound it; not owned
};

/// The device, in the numbers of CUDA in this process: as ddprun and srun --ddp mean it with --gpus all and one, and as
/// programs choose that know their local rank only. Nothing without a visible NVIDIA GPU. Pure.
std::optional<RankDevice> rank_device(const Topology& topology, const RankFacts& rank,
                                      const base::Environment& environment);

// The machine as each rank of a node sees it: a device cgroup may give each task GPUs of its own (Slurm's
// ConstrainDevices with --gpus-per-task), which CUDA then numbers from 0 in every task.

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

// Which GPUs the ranks of a node use, from what the launcher left to each.

/// The GPUs of the node by local rank, for PlacementRequest::gpus. Ranks with different lists, or that see different
/// GPUs, get the first of each.
/// Without a list, and with more GPUs than ranks, GpuVisibility::none leaves each rank the GPU with its local rank's
/// number, which is the one that programs take; otherwise the ranks may be spread over the GPUs.
std::optional<std::vector<int>> gpus_of_ranks(const RankViews& views, const std::vector<RankResources>& ranks,
                                              GpuVisibility visibility);

}  // namespace ddp::topology
