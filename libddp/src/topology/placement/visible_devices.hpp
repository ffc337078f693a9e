// The variables with which users and job schedulers choose GPUs, read as the runtimes read them: NVIDIA's by
// CUDA_VISIBLE_DEVICES; AMD's by ROCR_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL and HIP_VISIBLE_DEVICES, or without the last
// one CUDA_VISIBLE_DEVICES; Intel's by ZE_AFFINITY_MASK.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

/// AMD documents that HIP obeys it, but only its OpenCL does: what it leaves has to be said by other variables, too
/// (decision 0083).
inline constexpr const char* kDeviceOrdinal = "GPU_DEVICE_ORDINAL";

/// An entry of such a list that names a device.
struct VisibleEntry {
  std::string text;  ///< as it is written
  int gpu = 0;       ///< index in Topology::gpus()
};

/// A variable that is set, and what it leaves.
struct VisibleVariable {
  std::string name;
  std::string value;
  std::vector<VisibleEntry> entries{};  ///< in the order in which the runtime then numbers its devices
  std::string wrong_entry{};            ///< the one at which the runtime stops; empty if all name a device
  bool repeats = false;                 ///< wrong_entry is there twice, for which CUDA shows no device at all
  bool undecidable = false;             ///< it names UUIDs, and the GPUs' are unknown
};

/// Indices of the GPUs of a vendor that this process may use, by PCI address: what a runtime numbers 0, 1, ... while no
/// variable is set. (Under a device cgroup it does not count those that the cgroup hides.)
std::vector<int> visible_gpus(const Topology& topology, Vendor vendor);

/// The variables of a vendor's runtime that are set and obeyed, in the order in which they act: each one numbers what
/// the one before it leaves.
std::vector<VisibleVariable> visible_variables(const Topology& topology, Vendor vendor,
                                               const base::Environment& environment);

/// Indices of the GPUs that the variables leave, in the order of their runtimes; nothing when none is obeyed. For
/// PlacementRequest::gpus.
std::optional<std::vector<int>> gpus_named_by(const Topology& topology, const base::Environment& environment);

}  // namespace ddp::topology
