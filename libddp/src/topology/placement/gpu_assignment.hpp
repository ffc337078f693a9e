// Which GPU each rank of a node gets.
#pragma once

#include <optional>
#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

#include "topology/placement/allowed_sets.hpp"

namespace ddp::topology {

struct GpuChoice {
  std::optional<int> gpu;
  bool shared = false;
  Decision decision;
};

struct GpuAssignment {
  std::vector<GpuChoice> ranks;
  std::vector<int> extra;  ///< could be used, but no rank needs them; ascending
};

/// The visible GPUs of the vendor that ranks use, ascending: the vendor with most of them; NVIDIA before AMD before
/// Intel where several have as many.
std::vector<int> usable_gpus(const Topology& topology);

/// Throws Error(invalid_argument) for an unknown index in PlacementRequest::gpus.
GpuAssignment assign_gpus(const Topology& topology, const PlacementRequest& request, const AllowedSets& allowed);

}  // namespace ddp::topology
