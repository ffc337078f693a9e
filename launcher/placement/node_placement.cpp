#include "placement/node_placement.hpp"

#include <exception>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/stderr_line.hpp"
#include "topology/network_facts.hpp"
#include "topology/user_interfaces.hpp"

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

struct SocketInterface {
  std::string name;
  std::string reason;
};

/// The interface over which ranks of this host reach each other: the user's, as World::init will take it, else
/// loopback. Throws Error(invalid_argument) when the user has named one that is not there.
SocketInterface socket_interface(const base::Environment& environment) {
  std::vector<NetworkInterface> interfaces;
  for (auto& fact : topology::read_interfaces("/sys", topology::list_raw_interfaces())) {
    interfaces.push_back(std::move(fact.interface));
  }
  if (auto named = topology::interfaces_named_by_user(environment, interfaces)) {
    return {.name = named->names.front(), .reason = named->reason};
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.kind == InterfaceKind::loopback && !interface.addresses.empty()) {
      return {.name = interface.name, .reason = "all ranks are on this host"};
    }
  }
  return {};
}

}  // namespace

std::vector<RankPlacement> place_ranks(const LaunchOptions& options, const base::Environment& environment) {
  std::vector<RankPlacement> ranks(static_cast<std::size_t>(options.nproc_per_node));
  const SocketInterface interface = socket_interface(environment);
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
                                                 .socket_interface = interface.name,
                                                 .socket_interface_reason = interface.reason},
                                                environment);
      rank.summary = summarize(topology, placement);
    }
  } catch (const std::exception& error) {
    base::write_stderr_line(
        fmt::format("ddprun: warning: ranks are neither bound to cores nor given GPUs: {}", error.what()));
  }
  return ranks;
}

}  // namespace ddp::launcher
