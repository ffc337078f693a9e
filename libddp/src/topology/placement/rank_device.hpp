// Which of the CUDA devices that a process sees is its own: for World::device().
#pragma once

#include <optional>

#include <ddp/rank_device.hpp>
#include <ddp/topology.hpp>

#include "base/env_table.hpp"

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

}  // namespace ddp::topology
