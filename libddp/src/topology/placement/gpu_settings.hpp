// The part of the settings that says which GPUs a rank sees.
#pragma once

#include <vector>

#include "topology/placement/settings.hpp"

namespace ddp::topology {

/// @param own one of @p placements. In no particular order.
std::vector<Setting> gpu_settings(const Topology& topology, const std::vector<Placement>& placements,
                                  const Placement& own, GpuVisibility visibility, const base::Environment& environment);

}  // namespace ddp::topology
