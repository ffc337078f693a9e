// Which GPU each rank of a node gets.
#pragma once

#include <optional>
#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

#include "topology/placement/core_pools.hpp"

namespace ddp::topology {

struct GpuChoice {
  std::optional<int> gpu;
  bool shared = false;
  Decision decision;
};

/// The visible GPUs of the vendor that ranks use, ascending: the vendor with most of them; NVIDIA before AMD before
/// Intel where several have as many.
std::vector<int> usable_gpus(const Topology& topology);

/// By local rank. Throws Error(invalid_argument) for an unknown index in PlacementRequest::gpus.
std::vector<GpuChoice> assign_gpus(const Topology& topology, const PlacementRequest& request,
                                   const AllowedSets& allowed);

}  // namespace ddp::topology
