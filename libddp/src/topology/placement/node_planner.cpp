#include "topology/placement/node_planner.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/topology.hpp>

#include "topology/placement/rank_device.hpp"

namespace ddp::topology {
namespace {

base::Environment environment_of(const RankResources& rank, const base::Environment& inherited) {
  auto variables = inherited.variables();
  for (const auto& [name, value] : rank.devices) variables.insert_or_assign(name, value);
  return base::Environment{std::move(variables)};
}

std::string summarize(const Topology& topology, const Placement& placement) {
  std::string text =
      fmt::format("{} {} (processors {}{})", placement.num_cores, placement.num_cores == 1 ? "core" : "cores",
                  placement.cpus.to_string(), placement.cores_shared ? ", shared" : "");
  if (!placement.numa_nodes.empty()) {
    std::vector<int> numbers;
    for (const int node : placement.numa_nodes) {
      numbers.push_back(topology.numa_nodes().at(static_cast<std::size_t>(node)).os_index);
    }
    text += fmt::format(", NUMA {} {}", numbers.size() == 1 ? "node" : "nodes", fmt::join(numbers, ","));
  }
  if (placement.gpu) {
    const Gpu& gpu = topology.gpus().at(static_cast<std::size_t>(*placement.gpu));
    text += fmt::format(", GPU {} ({}{})", gpu.index, gpu.pci.to_string(), placement.gpu_shared ? ", shared" : "");
  }
  if (!placement.nics.empty()) {
    text += fmt::format(", NIC {}", topology.nics().at(static_cast<std::size_t>(placement.nics.front())).name());
  }
  return text;
}

}  // namespace

std::vector<RankPlan> plan_node(const Topology& topology, const NodeRequest& request) {
  const RankViews views(topology, request.ranks);
  PlacementRequest wanted{.num_ranks = static_cast<int>(request.ranks.size()),
                          .policy = request.bind,
                          .gpus = gpus_of_ranks(views, request.ranks, request.gpus)};
  for (const RankResources& rank : request.ranks) wanted.allowed.push_back(rank.cpus);
  std::vector<Placement> placements = place(views.all(), wanted);

  SettingsOptions options{.gpus = request.gpus,
                          .bound = request.bind != BindPolicy::none,
                          .interface = request.interface,
                          .processors = 0,
                          .nccl_conf = request.nccl_conf};
  const std::vector<double> shares = processor_shares(request.ranks);
  std::vector<RankPlan> plans;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const Placement& placement = placements[i];
    options.processors = shares[i];
    plans.push_back({.placement = placement,
                     .binding = options.bound ? std::optional{Binding::from(topology, placement)} : std::nullopt,
                     .settings = derive_settings(views.of(i), placements, placement.local_rank, options,
                                                 environment_of(request.ranks[i], request.environment)),
                     .summary = summarize(topology, placement)});
  }
  return plans;
}

}  // namespace ddp::topology
