// Environment variables of NCCL, UCX, Gloo, OpenMP and the GPU runtimes that follow from a rank's placement.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

/// Which GPUs a rank sees.
enum class GpuVisibility {
  all,   ///< all that the job may use, ordered so that local rank i is GPU i: what torchrun's users expect
  one,   ///< its own only
  none,  ///< nothing is set
};
std::string_view to_string(GpuVisibility visibility) noexcept;
/// Throws Error(invalid_argument) that lists the accepted words.
GpuVisibility parse_gpu_visibility(std::string_view word);

struct SettingsOptions {
  GpuVisibility gpus = GpuVisibility::all;
  bool bound = true;             ///< the rank has a mask of its own, so that OpenMP need not bind threads
  std::string socket_interface;  ///< chosen for sockets; empty: none was chosen
  std::string socket_interface_reason;
};

/// One environment variable of one rank.
struct Setting {
  std::string name;
  std::string value;     ///< what the rank gets: ours, or the user's where there is one
  std::string reason;    ///< one sentence
  bool by_user = false;  ///< the environment had it; it is left as it is
  std::string conflict;  ///< what is wrong with the user's value; empty if nothing is
};

/// @param placements of all ranks of the node, as place() returned them.
/// @param environment what the user and the job scheduler gave. A variable that is set there, also to nothing, is kept.
/// Ordered by name.
std::vector<Setting> derive_settings(const Topology& topology, const std::vector<Placement>& placements, int local_rank,
                                     const SettingsOptions& options, const base::Environment& environment);

/// Indices of the GPUs that CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) and ZE_AFFINITY_MASK
/// leave, in their order; nothing when none of them is set. Understands numbers (positions among the visible GPUs of
/// the vendor), UUIDs and their beginnings ("GPU-3a1", "MIG-..."); as CUDA does, stops at the first entry that names no
/// device. For PlacementRequest::gpus.
std::optional<std::vector<int>> gpus_named_by(const Topology& topology, const base::Environment& environment);

}  // namespace ddp::topology
