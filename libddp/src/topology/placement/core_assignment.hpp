// Which cores each rank of a node runs on.
#pragma once

#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

#include "topology/placement/core_pools.hpp"
#include "topology/placement/gpu_assignment.hpp"

namespace ddp::topology {

struct CoreChoice {
  std::vector<int> near;        ///< indices of the cores that the rank's NIC should be near to; never empty
  std::vector<int> cores;       ///< indices of the cores that it runs on, ascending; never empty
  CpuSet cpus;                  ///< their allowed processors
  std::vector<int> numa_nodes;  ///< of the cores, ascending
  std::vector<int> sharers;     ///< local ranks in the same NUMA node or package, this one included
  bool shared = false;
  Decision numa_node;
  Decision decision;
};

/// One for each of @p gpus, which are by local rank.
std::vector<CoreChoice> assign_cores(const Topology& topology, BindPolicy policy, const AllowedSets& allowed,
                                     const std::vector<GpuChoice>& gpus);

}  // namespace ddp::topology
