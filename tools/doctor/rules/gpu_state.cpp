// Rules on NVLink between GPUs by way of NVSwitches, and on GPUs that do not work as they should, by what NVML
// reports.
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/rule.hpp"

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
     .meaning = "NCCL fails at startup (CUDA error 401 or 802), or CUDA itself does not start.",
     .fix = "systemctl restart nvidia-fabricmanager, and look at its log; NCCL_NVLS_ENABLE=0 to do without",
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
     .meaning = "If NCCL finds that GPUs can sum in NVSwitches but cannot set that up, "
                "it fails and does not fall back. Whether it needs these devices depends on driver and container.",
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

namespace {

constexpr std::int64_t kRecentS = 24 * 3600;

/// Adds what @p fault says of each GPU; empty: nothing. Ranks that see the same one are joined by equal evidence.
template <class Fault>
void each_gpu(const JobFacts& job, Findings& findings, Fault fault) {
  for (const RankFacts& rank : job.ranks) {
    for (const topology::GpuHealth& gpu : rank.gpu_health) {
      if (const std::string text = fault(gpu); !text.empty()) {
        findings.on_rank(rank, fmt::format("{} on {}: {}", gpu.name, rank.host, text));
      }
    }
  }
}

void check_memory(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    if (gpu.remap_failed) return "a faulty row of memory could not be replaced";
    if (gpu.uncorrected_errors == 0) return {};
    return fmt::format("{} uncorrected errors of its memory since the driver was loaded", gpu.uncorrected_errors);
  });
}

void check_xids(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    for (const XidFacts& xid : node.facts.xids) {
      if (xid.age_s > kRecentS) continue;
      findings.on_node(node,
                       fmt::format("Xid {} of GPU {}{}, {} ago", xid.number, xid.gpu,
                                   xid.times > 1 ? fmt::format(", {} times", xid.times) : "",
                                   xid.age_s < 3600 ? "less than an hour" : fmt::format("{} h", xid.age_s / 3600)));
    }
  }
}

void check_reset(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    return gpu.remap_pending ? "faulty memory is replaced at the next reset" : "";
  });
}

void check_slowdown(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    if ((gpu.slowed_by & topology::kSlowedByPowerBrake) != 0) return "slowed down by the power supply (power brake)";
    if ((gpu.slowed_by & (topology::kSlowedByHeat | topology::kSlowedByHeatOfHardware)) != 0)
      return "slowed down by heat";
    if ((gpu.slowed_by & topology::kSlowedByHardware) != 0) return "slowed down by the hardware (heat or power)";
    return {};
  });
}

void check_persistence(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings,
           [](const topology::GpuHealth& gpu) -> std::string { return gpu.persistent ? "" : "persistence is off"; });
}

constexpr Rule kHealthRules[] = {
    {.id = "gpu-memory",
     .severity = Severity::error,
     .title = "a GPU's memory has uncorrected errors",
     .meaning = "Programs on it end with CUDA_ERROR_ECC_UNCORRECTABLE or Xid 48, 63, 64 or 94, or will again.",
     .fix = "nvidia-smi -q -d ECC,ROW_REMAPPER; reset it (nvidia-smi --gpu-reset -i N), and drain the node if errors "
            "return",
     .check = &check_memory},
    {.id = "gpu-xid",
     .severity = Severity::warning,
     .title = "a GPU has failed within a day",
     .meaning = "NVIDIA's driver has logged a failure that no program caused: memory (48, 63, 64, 92, 94, 95, 140),"
                " NVLink (74), lost from the bus (79), its own processors (62, 119, 120), start (143).",
     .fix = "nvidia-smi -q; reset it (nvidia-smi --gpu-reset -i N) or the machine, and drain the node if it comes back",
     .check = &check_xids},
    {.id = "gpu-reset",
     .severity = Severity::warning,
     .title = "a GPU waits for a reset",
     .meaning = "Its faulty memory stays in use until then.",
     .fix = "drain the node, then nvidia-smi --gpu-reset -i N",
     .check = &check_reset},
    {.id = "gpu-slow",
     .severity = Severity::warning,
     .title = "a GPU is slowed down",
     .meaning = "All ranks wait for the slowest one at each step.",
     .fix =
         "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, cooling water and power supplies of the node",
     .check = &check_slowdown},
    {.id = "gpu-persistence",
     .severity = Severity::info,
     .title = "the driver is unloaded while no process uses a GPU",
     .meaning = "Programs start seconds later, and its counters of errors are lost each time.",
     .fix = "systemctl enable --now nvidia-persistenced",
     .check = &check_persistence},
};

}  // namespace

std::span<const Rule> gpu_health_rules() { return kHealthRules; }

}  // namespace ddp::tools::doctor
