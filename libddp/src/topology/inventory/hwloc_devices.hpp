// Finds GPUs and NICs among hwloc's I/O objects.
#pragma once

#include <map>
#include <optional>

#include <ddp/topology.hpp>

#include "topology/inventory/hwloc_handle.hpp"
#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

/// Which GPU an object of hwloc's tree is or belongs to.
class DeviceTable {
 public:
  explicit DeviceTable(std::map<hwloc_obj_t, int> gpus) : gpus_(std::move(gpus)) {}
  /// Index of the GPU; -1 for objects that are none.
  int gpu_of(hwloc_obj_t object) const;

 private:
  std::map<hwloc_obj_t, int> gpus_;  ///< by PCI object
};

/// Fills in gpus, nics and interfaces of @p parts, whose packages, NUMA nodes and cores must be there.
DeviceTable read_devices(hwloc_topology_t topology, const LiveFacts& facts, Topology::Parts& parts);

}  // namespace ddp::topology
