// Makes the inventory of a machine from hwloc's tree.
#pragma once

#include <string>
#include <string_view>

#include <ddp/topology.hpp>

#include "topology/inventory/hwloc_handle.hpp"
#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

/// Root-object info under which to_json(LiveFacts) travels in exported XML.
inline constexpr const char* kFactsInfo = "DDPLiveFacts";

/// @p topology loaded, with I/O objects. Packages, NUMA nodes and cores are in hwloc's logical order.
/// Parts::source and Parts::xml are left empty.
Topology::Parts read_hwloc(hwloc_topology_t topology, const LiveFacts& facts);

/// The processors of a bitmap. Throws Error(invalid_argument) for infinite ones.
CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap);

}  // namespace ddp::topology
