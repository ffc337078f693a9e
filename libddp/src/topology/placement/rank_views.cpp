#include "topology/placement/rank_views.hpp"

#include <algorithm>
#include <set>

namespace ddp::topology {
namespace {

Topology with_visible(const Topology& topology, const std::set<PciAddress>& visible) {
  Topology::Parts parts{.packages = topology.packages(),
                        .numa_nodes = topology.numa_nodes(),
                        .cores = topology.cores(),
                        .gpus = topology.gpus(),
                        .nics = topology.nics(),
                        .interfaces = topology.interfaces(),
                        .allowed = topology.allowed_cpus(),
                        .gpu_links = {},
                        .source = topology.source(),
                        .xml = {}};
  for (const Gpu& a : topology.gpus()) {
    for (const Gpu& b : topology.gpus()) parts.gpu_links.push_back(topology.link_bandwidth(a, b));
  }
  for (Gpu& gpu : parts.gpus) {
    gpu.visible = visible.count(gpu.pci) > 0;
    if (gpu.visible) {
      gpu.hidden_reason.clear();
    } else if (gpu.hidden_reason.empty()) {
      gpu.hidden_reason = "the device cgroup of this rank hides it";
    }
  }
  return Topology::from_parts(std::move(parts));
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
