// Makes the inventory of a machine from hwloc's tree.
#pragma once

#include <map>
#include <memory>

#include <hwloc.h>

#include <ddp/topology.hpp>

#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

// hwloc's topology with an owner, and the few places in which hwloc 2 and 3 differ.

struct HwlocDeleter {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using HwlocHandle = std::unique_ptr<hwloc_topology, HwlocDeleter>;

#if HWLOC_API_VERSION >= 0x00030000
// A device may have several types there.
inline bool is_network(hwloc_obj_t device) { return (device->attr->osdev.types & HWLOC_OBJ_OSDEV_NETWORK) != 0; }
inline bool is_openfabrics(hwloc_obj_t device) {
  return (device->attr->osdev.types & HWLOC_OBJ_OSDEV_OPENFABRICS) != 0;
}
#else
inline bool is_network(hwloc_obj_t device) { return device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK; }
inline bool is_openfabrics(hwloc_obj_t device) { return device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS; }
#endif

/// Root-object info under which to_json(LiveFacts) travels in exported XML.
inline constexpr const char* kFactsInfo = "DDPLiveFacts";

/// @p topology loaded, with I/O objects. Packages, NUMA nodes and cores are in hwloc's logical order.
/// Parts::source and Parts::xml are left empty.
Topology::Parts read_hwloc(hwloc_topology_t topology, const LiveFacts& facts);

/// The processors of a bitmap. Throws Error(invalid_argument) for infinite ones.
CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap);

// Finds GPUs and NICs among hwloc's I/O objects.

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
