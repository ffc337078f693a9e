// The variables with which users and job schedulers choose GPUs: CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES,
// HIP_VISIBLE_DEVICES and ZE_AFFINITY_MASK, read as the runtimes read them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

/// An entry of such a list that names a device.
struct VisibleEntry {
  std::string text;  ///< as it is written
  int gpu = 0;       ///< index in Topology::gpus()
};

/// A variable that is set, and what it leaves.
struct VisibleVariable {
  std::string name;
  std::string value;
  std::vector<VisibleEntry> entries;  ///< in the order in which the runtime then numbers its devices
  std::string wrong_entry;            ///< the one at which the runtime stops; empty if all name a device
  bool undecidable = false;           ///< it names UUIDs, and the GPUs' are unknown
};

/// Indices of the GPUs of a vendor that this process may use, by PCI address: what a runtime numbers 0, 1, ... while no
/// variable is set. (Under a device cgroup it does not count those that the cgroup hides.)
std::vector<int> visible_gpus(const Topology& topology, Vendor vendor);

/// The variables of a vendor's runtime that are set, in the order in which they act: each one numbers what the one
/// before it leaves.
std::vector<VisibleVariable> visible_variables(const Topology& topology, Vendor vendor,
                                               const base::Environment& environment);

/// Indices of the GPUs that CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) and ZE_AFFINITY_MASK
/// leave, in their order; nothing when none of them is set. Understands numbers (positions among the visible GPUs of
/// the vendor), UUIDs and their beginnings ("GPU-3a1", "MIG-..."); as CUDA does, stops at the first entry that names no
/// device. For PlacementRequest::gpus.
std::optional<std::vector<int>> gpus_named_by(const Topology& topology, const base::Environment& environment);

}  // namespace ddp::topology
