// The words of --bind and --gpus, for every program that has these options, and for DDP_BIND and DDP_GPUS.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <ddp/placement.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

/// Which GPUs a rank sees.
enum class GpuVisibility {
  all,   ///< all that the job may use, ordered so that local rank i is GPU i, as torchrun's users expect
  one,   ///< its own only
  none,  ///< no variable is set
};
std::string_view to_string(GpuVisibility visibility) noexcept;

inline constexpr std::array<std::string_view, 4> kBindWords{"numa", "core", "socket", "none"};  ///< by BindPolicy
inline constexpr std::array<std::string_view, 3> kGpuWords{"all", "one", "none"};               ///< by GpuVisibility

/// @param attempted of the error: "reading --bind". Throw Error(invalid_argument) that lists the words and suggests the
/// closest.
BindPolicy read_bind_policy(std::string attempted, std::string_view word);
GpuVisibility read_gpu_visibility(std::string attempted, std::string_view word);

/// DDP_BIND; nothing where it is unset or empty. Throws Error(invalid_argument) that names the variable.
std::optional<BindPolicy> bind_policy_of(const base::Environment& environment);
/// DDP_GPUS; GpuVisibility::all where it is unset or empty. Throws likewise.
GpuVisibility gpu_visibility_of(const base::Environment& environment);

}  // namespace ddp::topology
