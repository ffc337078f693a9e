#include "topology/placement/rank_views.hpp"

#include <algorithm>
#include <set>

namespace ddp::topology {
namespace {

Topology with_visible(const Topology& topology, const std::set<PciAddress>& visible) {
  return topology.with_visible_gpus([&](const Gpu& gpu) { return visible.contains(gpu.pci); },
                                    "the device cgroup of this rank hides it");
}

}  // namespace

RankViews::RankViews(const Topology& topology, const std::vector<RankResources>& ranks) : topology_(topology) {
  const bool same = std::all_of(ranks.begin(), ranks.end(),
                                [&](const RankResources& rank) { return rank.gpus == ranks.front().gpus; });
  if (same) return;
  std::set<PciAddress> any;
  for (const RankResources& rank : ranks) {
    own_.push_back(with_visible(topology, {rank.gpus.begin(), rank.gpus.end()}));
    any.insert(rank.gpus.begin(), rank.gpus.end());
  }
  all_ = with_visible(topology, any);
}

}  // namespace ddp::topology
