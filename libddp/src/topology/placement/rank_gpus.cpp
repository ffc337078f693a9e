#include "topology/placement/rank_gpus.hpp"

#include <algorithm>
#include <cstddef>

#include "topology/placement/gpu_assignment.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::topology {

std::optional<std::vector<int>> gpus_of_ranks(const RankViews& views, const std::vector<RankResources>& ranks,
                                              GpuVisibility visibility) {
  std::vector<int> firsts;
  std::optional<std::vector<int>> common;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    auto named = gpus_named_by(views.of(rank), base::Environment{ranks[rank].devices});
    if (!named && views.differ()) named = usable_gpus(views.of(rank));
    if (!named) {
      if (visibility != GpuVisibility::none) return std::nullopt;
      std::vector<int> all = usable_gpus(views.all());
      return all.size() > ranks.size() ? std::optional{std::move(all)} : std::nullopt;
    }
    if (named->empty()) return named;
    firsts.push_back(named->front());
    common = std::move(named);
  }
  const bool same = !views.differ() && std::all_of(ranks.begin(), ranks.end(), [&](const RankResources& each) {
    return each.devices == ranks.front().devices;
  });
  return same ? common : firsts;
}

}  // namespace ddp::topology
