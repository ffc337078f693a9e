// Which GPUs the ranks of a node use, from what the launcher left to each.
#pragma once

#include <optional>
#include <vector>

#include "topology/placement/option_words.hpp"
#include "topology/placement/rank_resources.hpp"
#include "topology/placement/rank_views.hpp"

namespace ddp::topology {

/// The GPUs of the node by local rank, for PlacementRequest::gpus. Ranks with different lists, or that see different
/// GPUs, get the first of each.
/// Without a list, and with more GPUs than ranks, GpuVisibility::none leaves each rank the GPU with its local rank's
/// number, which is the one that programs take; otherwise the ranks may be spread over the GPUs.
std::optional<std::vector<int>> gpus_of_ranks(const RankViews& views, const std::vector<RankResources>& ranks,
                                              GpuVisibility visibility);

}  // namespace ddp::topology
