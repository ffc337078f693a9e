#include <ddp/placement.hpp>

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "topology/placement/core_assignment.hpp"
#include "topology/placement/core_pools.hpp"
#include "topology/placement/gpu_assignment.hpp"
#include "topology/placement/nic_assignment.hpp"

namespace ddp {

std::vector<Placement> place(const Topology& topology, const PlacementRequest& request) {
  if (request.num_ranks < 1) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "placing ranks on a node",
                 .cause = fmt::format("{} ranks were requested", request.num_ranks),
                 .hint = "request at least 1"}};
  }
  const topology::AllowedSets allowed(topology, request);
  std::vector<topology::GpuChoice> gpus = topology::assign_gpus(topology, request, allowed);
  std::vector<topology::CoreChoice> cores = topology::assign_cores(topology, request.policy, allowed, gpus);
  std::vector<topology::NicChoice> nics = topology::assign_nics(topology, gpus, cores);

  std::vector<Placement> placements;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    placements.push_back({.local_rank = static_cast<int>(rank),
                          .gpu = gpus[rank].gpu,
                          .gpu_shared = gpus[rank].shared,
                          .nics = std::move(nics[rank].nics),
                          .numa_nodes = std::move(cores[rank].numa_nodes),
                          .cpus = std::move(cores[rank].cpus),
                          .num_cores = static_cast<int>(cores[rank].cores.size()),
                          .cores_shared = cores[rank].shared,
                          .decisions = {std::move(gpus[rank].decision), std::move(nics[rank].decision),
                                        std::move(cores[rank].numa_node), std::move(cores[rank].decision)}});
  }
  return placements;
}

}  // namespace ddp
