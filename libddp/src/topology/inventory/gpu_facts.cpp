#include "topology/inventory/gpu_facts.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "topology/inventory/gpu_devices.hpp"
#include "topology/inventory/nvml.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::topology {
namespace {

namespace fs = std::filesystem;

GpuFact fact_of(const NvmlGpu& gpu) {
  GpuFact fact{
      .pci = gpu.pci, .nvml_index = gpu.index, .model = gpu.name, .uuid = gpu.uuid, .mig = gpu.mig, .visible = true};
  if (gpu.mig_enabled && gpu.mig.empty()) fact.hidden_reason = "MIG is on, and none of its parts may be used";
  return fact;
}

/// Bandwidth from one GPU in MB/s: to each GPU at the other end of a link, and to switches.
struct LinkSums {
  std::map<PciAddress, double> direct;
  double to_switches = 0;
};

LinkSums sum_links(const fs::path& sys, const NvmlGpu& gpu, const std::vector<GpuFact>& gpus) {
  LinkSums sums;
  for (const NvLink& link : gpu.links) {
    LinkEnd end = link.end;
    const bool to_gpu = link.remote && std::any_of(gpus.begin(), gpus.end(),
                                                   [&](const GpuFact& other) { return other.pci == *link.remote; });
    if (end == LinkEnd::unknown && to_gpu) end = LinkEnd::gpu;
    if (end == LinkEnd::unknown && link.remote && is_other_bridge(pci_folder(sys, *link.remote))) {
      end = LinkEnd::nvswitch;
    }
    if (end == LinkEnd::nvswitch) sums.to_switches += link.mb_per_s;
    if (end == LinkEnd::gpu && to_gpu && *link.remote != gpu.pci) sums.direct[*link.remote] += link.mb_per_s;
  }
  return sums;
}

std::vector<GpuLinkFact> links_among(const fs::path& sys, const std::vector<NvmlGpu>& listed,
                                     const std::vector<GpuFact>& gpus) {
  std::map<PciAddress, LinkSums> sums;
  for (const NvmlGpu& gpu : listed) sums.emplace(gpu.pci, sum_links(sys, gpu, gpus));
  std::vector<GpuLinkFact> links;
  for (const auto& [a, from_a] : sums) {
    std::map<PciAddress, double> reached = from_a.direct;
    for (const auto& [b, from_b] : sums) {
      const double switched = std::min(from_a.to_switches, from_b.to_switches);
      if (a != b && switched > 0) reached[b] += switched;
    }
    for (const auto& [b, mb_per_s] : reached) links.push_back({.a = a, .b = b, .mb_per_s = mb_per_s});
  }
  return links;
}

}  // namespace

GpuFacts collect_gpu_facts(const fs::path& root, const std::optional<std::vector<NvmlGpu>>& listed) {
  const fs::path sys = root / "sys";
  GpuFacts facts;
  for (const NvmlGpu& gpu : listed.value_or(std::vector<NvmlGpu>{})) facts.gpus.push_back(fact_of(gpu));
  for (GpuDevice& device : find_gpu_devices(root)) {
    const bool known = std::any_of(facts.gpus.begin(), facts.gpus.end(),
                                   [&](const GpuFact& fact) { return fact.pci == device.fact.pci; });
    if (known) continue;
    if (device.nvidia && listed && device.has_driver) {
      device.fact.hidden_reason = "NVML does not show it: the job's device cgroup or container hides it";
    }
    facts.gpus.push_back(std::move(device.fact));
  }
  for (GpuFact& fact : facts.gpus) fact.visible = fact.hidden_reason.empty();
  std::sort(facts.gpus.begin(), facts.gpus.end(), [](const GpuFact& a, const GpuFact& b) { return a.pci < b.pci; });
  if (listed) facts.links = links_among(sys, *listed, facts.gpus);
  return facts;
}

}  // namespace ddp::topology
