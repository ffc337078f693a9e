#include "topology/placement/placement_summary.hpp"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::topology {

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

}  // namespace ddp::topology
