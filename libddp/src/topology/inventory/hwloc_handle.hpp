// hwloc's topology with an owner, and the few places in which hwloc 2 and 3 differ.
#pragma once

#include <hwloc.h>

#include <memory>

namespace ddp::topology {

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

}  // namespace ddp::topology
