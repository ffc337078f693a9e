// A rank's placement in words, for reports of launchers.
#pragma once

#include <string>

#include <ddp/topology.hpp>

namespace ddp::topology {

/// "4 cores (processors 0-3), NUMA node 0, GPU 1 (0000:3b:00.0), NIC ib0 (mlx5_0)"
std::string summarize(const Topology& topology, const Placement& placement);

}  // namespace ddp::topology
