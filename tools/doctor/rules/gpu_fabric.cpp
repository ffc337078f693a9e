// Rules on NVLink between GPUs by way of NVSwitches: Fabric Manager, IMEX, and the devices that containers must have.
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

using topology::FabricState;

bool is_off(const RankFacts& rank, std::string_view name) {
  const std::string text = rank.variable(name);
  return !text.empty() && std::strtoll(text.c_str(), nullptr, 0) == 0;
}

std::string fault_of(const topology::GpuHealth& gpu) {
  switch (gpu.fabric) {
    case FabricState::not_started: return "it has not begun to join the NVLink fabric";
    case FabricState::in_progress: return "it is still joining the NVLink fabric";
    case FabricState::completed:
      return gpu.fabric_error == 0
                 ? std::string{}
                 : fmt::format("it could not join the NVLink fabric: nvmlReturn_t {}", gpu.fabric_error);
    case FabricState::none: break;
  }
  return {};
}

void check_fabric(const JobFacts& job, Findings& findings) {
  std::set<int> told;
  for (const RankFacts& rank : job.ranks) {
    for (const topology::GpuHealth& gpu : rank.gpu_health) {
      const std::string fault = fault_of(gpu);
      if (fault.empty()) continue;
      findings.on_rank(rank, fmt::format("{} on {}: {}", gpu.name, rank.host, fault));
      told.insert(rank.node);
    }
  }
  // GPUs before H100 do not tell it.
  for (std::size_t number = 0; number < job.nodes.size(); ++number) {
    const NodeFacts& node = job.nodes[number].facts;
    if (node.fabric_manager != FabricManager::absent || told.contains(static_cast<int>(number))) continue;
    findings.on_node(job.nodes[number],
                     fmt::format("{} NVSwitches, but nv-fabricmanager does not run", node.nvswitches));
  }
}

void check_manager_version(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const NodeFacts& facts = node.facts;
    if (facts.fabric_manager_version.empty() || facts.nvidia_driver.empty()) continue;
    if (facts.fabric_manager_version == facts.nvidia_driver) continue;
    findings.on_node(
        node, fmt::format("Fabric Manager {} with driver {}", facts.fabric_manager_version, facts.nvidia_driver));
  }
}

/// NVLink SHARP is for GPUs that have joined a fabric, which those before H100 do not.
bool may_use_nvls(const RankFacts& rank) {
  for (const topology::GpuHealth& gpu : rank.gpu_health) {
    if (gpu.fabric == FabricState::completed && gpu.fabric_error == 0) return !is_off(rank, "NCCL_NVLS_ENABLE");
  }
  return false;
}

void check_caps(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.nvidia_caps || !may_use_nvls(rank)) continue;
    findings.on_rank(rank, "there is no /dev/nvidia-caps");
  }
}

/// The NVLink domain of several nodes that a rank's GPUs are in; empty: none.
std::string domain_of(const RankFacts& rank) {
  if (is_off(rank, "NCCL_MNNVL_ENABLE")) return {};
  for (const topology::GpuHealth& gpu : rank.gpu_health) {
    if (!gpu.cluster.empty()) return fmt::format("{}.{}", gpu.cluster, gpu.clique);
  }
  return {};
}

void check_channel(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const RankFacts& rank : job.ranks) {
    if (domain_of(rank).empty() || rank.imex_channel) continue;
    findings.on_rank(rank, "no device in /dev/nvidia-caps-imex-channels may be opened");
  }
}

void check_domain(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::map<std::string, std::vector<int>>> lists;  // by domain and digest of the list
  for (const RankFacts& rank : job.ranks) {
    if (const std::string domain = domain_of(rank); !domain.empty()) {
      lists[domain][job.node_of(rank).facts.imex_nodes].push_back(rank.rank);
    }
  }
  for (const auto& [domain, by_list] : lists) {
    if (by_list.size() < 2) continue;
    for (const auto& [list, ranks] : by_list) {
      findings.on_ranks(ranks, list.empty() ? std::string("no /etc/nvidia-imex/nodes_config.cfg")
                                            : fmt::format("/etc/nvidia-imex/nodes_config.cfg has the digest {}", list));
    }
  }
}

constexpr Rule kFabricRules[] = {
    {.id = "gpu-fabric",
     .severity = Severity::error,
     .title = "the NVLink fabric is not ready",
     .meaning = "NCCL fails in its beginning (CUDA error 401 or 802), or CUDA itself does not start.",
     .fix = "systemctl restart nvidia-fabricmanager, and look at its log; NCCL_NVLS_ENABLE=0 to go on without",
     .check = &check_fabric},
    {.id = "fabric-manager-version",
     .severity = Severity::error,
     .title = "Fabric Manager and driver have different versions",
     .meaning = "It refuses to start, or GPUs do not join the NVLink fabric after the next restart.",
     .fix = "install the nvidia-fabricmanager of the driver's version",
     .check = &check_manager_version},
    {.id = "nvls-caps",
     .severity = Severity::info,
     .title = "a container lacks devices that NVLink SHARP may need",
     .meaning = "Where NCCL finds that GPUs can sum in NVSwitches and cannot set that up, it fails and does not fall "
                "back. Whether it needs these devices depends on driver and container.",
     .fix = "if NCCL fails in NVLS: expose /dev/nvidia-caps and /dev/nvidia-caps-imex-channels to the container, or "
            "NCCL_NVLS_ENABLE=0",
     .check = &check_caps},
    {.id = "imex-channel",
     .severity = Severity::error,
     .title = "a rank may not use NVLink between nodes",
     .meaning = "GPUs are in an NVLink domain of several nodes, whose memory is shared by IMEX: without a channel NCCL "
                "fails to import it.",
     .fix = "give jobs a channel (Slurm: SwitchType=switch/nvidia_imex; containers: NVIDIA_IMEX_CHANNELS=0), or "
            "NCCL_MNNVL_ENABLE=0",
     .check = &check_channel},
    {.id = "imex-domain",
     .severity = Severity::error,
     .title = "nodes of one NVLink domain have different lists of IMEX",
     .meaning = "Their services do not find each other, and importing memory of another node fails.",
     .fix = "one /etc/nvidia-imex/nodes_config.cfg on all of them, then systemctl restart nvidia-imex",
     .check = &check_domain},
};

}  // namespace

std::span<const Rule> gpu_fabric_rules() { return kFabricRules; }

}  // namespace ddp::tools::doctor
