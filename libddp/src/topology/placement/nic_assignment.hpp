// Which NICs each rank of a node gets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

#include "topology/placement/core_assignment.hpp"
#include "topology/placement/gpu_assignment.hpp"

namespace ddp::topology {

/// The NICs for training traffic.
struct TrainingNics {
  std::vector<int> nics;                ///< indices, ascending
  std::map<int, std::string> left_out;  ///< why the others are left out
};

/// Usable ones; only RDMA and fabric devices if there are any; and none that is known to have less than half the rate
/// of the fastest: those are for management.
TrainingNics training_nics(const Topology& topology);

struct NicChoice {
  std::vector<int> nics;  ///< the rank's own first, then more that are equally near and that no other rank has
  Decision decision;
};

/// One for each rank. Distances are measured from its GPU, or from its cores where it has none.
std::vector<NicChoice> assign_nics(const Topology& topology, const std::vector<GpuChoice>& gpus,
                                   const std::vector<CoreChoice>& cores);

}  // namespace ddp::topology
