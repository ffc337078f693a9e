#include "placement/node_placement.hpp"

#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

namespace ddp::launcher {
namespace {

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

/// The interface over which ranks of one host reach each other.
std::string loopback_of(const Topology& topology) {
  for (const NetworkInterface& interface : topology.interfaces()) {
    if (interface.kind == InterfaceKind::loopback && !interface.addresses.empty()) return interface.name;
  }
  return {};
}

}  // namespace

std::vector<RankPlacement> place_ranks(const LaunchOptions& options, const base::Environment& environment) {
  std::vector<RankPlacement> ranks(static_cast<std::size_t>(options.nproc_per_node));
  try {
    const Topology topology = Topology::live();
    const std::vector<Placement> placements = place(topology, {.num_ranks = options.nproc_per_node,
                                                               .policy = options.bind,
                                                               .allowed = {Binding::current().cpus},
                                                               .gpus = topology::gpus_named_by(topology, environment)});
    const bool bound = options.bind != BindPolicy::none;
    for (const Placement& placement : placements) {
      RankPlacement& rank = ranks.at(static_cast<std::size_t>(placement.local_rank));
      if (bound) rank.binding = Binding::from(topology, placement);
      rank.settings = topology::derive_settings(topology, placements, placement.local_rank,
                                                {.gpus = options.gpus,
                                                 .bound = bound,
                                                 .socket_interface = loopback_of(topology),
                                                 .socket_interface_reason = "all ranks are on this host"},
                                                environment);
      rank.summary = summarize(topology, placement);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "ddprun: warning: ranks are neither bound to cores nor given GPUs: {}\n", error.what());
  }
  return ranks;
}

}  // namespace ddp::launcher
