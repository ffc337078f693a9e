// Rules on GPUs, access to them, PCIe above them, and the RDMA adapters that NCCL may use for them.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "doctor/facts.hpp"
#include "doctor/nccl_network.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

/// The GPU that a rank uses if its program chooses by local rank; points into the node. Null if unknown.
const GpuFacts* own_gpu(const JobFacts& job, const RankFacts& rank) {
  const NodeRecord& node = job.node_of(rank);
  std::size_t position = 0;
  if (rank.gpus.size() > 1) {
    position = static_cast<std::size_t>(rank.local_rank);
    if (rank.gpus.size() < node.ranks.size() || position >= rank.gpus.size()) return nullptr;
  }
  if (rank.gpus.empty()) return nullptr;
  const std::string name = rank.gpus[position].substr(0, rank.gpus[position].find(' '));  // a MIG part's GPU
  const auto found = std::find_if(node.facts.gpus.begin(), node.facts.gpus.end(),
                                  [&](const GpuFacts& gpu) { return gpu.name == name; });
  return found == node.facts.gpus.end() ? nullptr : &*found;
}

/// How near a port is to a GPU in NCCL's words, smaller is nearer: PIX, PXB, PHB (also NODE), SYS.
enum class Nearness { pix, pxb, phb, sys, unknown };

Nearness nearness(const NodeRecord& node, const GpuFacts& gpu, const RdmaPortFacts& port) {
  const auto index = static_cast<std::size_t>(&port - node.facts.rdma.data());
  switch (index < gpu.paths.size() ? gpu.paths[index] : Path::unknown) {
    case Path::self:
    case Path::nvlink:
    case Path::pix: return Nearness::pix;
    case Path::pxb: return Nearness::pxb;
    case Path::phb:
    case Path::node: return Nearness::phb;
    case Path::sys: return Nearness::sys;
    case Path::unknown: break;
  }
  return Nearness::unknown;
}

std::string_view to_string(Nearness nearness) noexcept {
  switch (nearness) {
    case Nearness::pix: return "PIX";
    case Nearness::pxb: return "PXB";
    case Nearness::phb: return "PHB";
    case Nearness::sys: return "SYS";
    case Nearness::unknown: break;
  }
  return "?";
}

/// Whether both are functions of one adapter: their addresses differ in the last character only.
bool on_one_adapter(const RdmaPortFacts& a, const RdmaPortFacts& b) {
  return !a.pci.empty() && a.link_layer == b.link_layer && a.pci.size() == b.pci.size() &&
         a.pci.substr(0, a.pci.size() - 1) == b.pci.substr(0, b.pci.size() - 1);
}

/// The adapters that NCCL may use, by the first port of each: active ones that NCCL_IB_HCA allows. Empty if it does not
/// use RDMA.
std::vector<const RdmaPortFacts*> allowed_adapters(const NodeRecord& node, const RankFacts& rank) {
  std::vector<const RdmaPortFacts*> adapters;
  if (!takes_rdma(node, rank)) return adapters;
  for (const RdmaPortFacts* port : taken_by_nccl(node, rank)) {
    const auto same = [&](const RdmaPortFacts* other) { return on_one_adapter(*other, *port); };
    if (std::none_of(adapters.begin(), adapters.end(), same)) adapters.push_back(port);
  }
  return adapters;
}

/// Whether others decide: a plugin for a network that NCCL finds, or a file that describes distances.
bool decides_otherwise(const RankFacts& rank) {
  return !rank.variable("NCCL_TOPO_FILE").empty() ||
         std::any_of(rank.plugins.begin(), rank.plugins.end(), [](const PluginFacts& plugin) {
           return plugin.variable == "NCCL_NET_PLUGIN" && plugin.network == "libfabric";
         });
}

/// The nearest active port that is not much slower than the one in use.
const RdmaPortFacts* nearest_active(const NodeRecord& node, const GpuFacts& gpu, std::int64_t rate_mbps) {
  const RdmaPortFacts* best = nullptr;
  for (const RdmaPortFacts& port : node.facts.rdma) {
    if (!is_active(port) || port.rate_mbps * 2 < rate_mbps) continue;
    if (best == nullptr || nearness(node, gpu, port) < nearness(node, gpu, *best)) best = &port;
  }
  return best;
}

void check_far(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const GpuFacts* gpu = own_gpu(job, rank);
    const auto allowed = allowed_adapters(node, rank);
    if (gpu == nullptr || allowed.empty() || decides_otherwise(rank)) continue;
    const RdmaPortFacts& own = **std::min_element(allowed.begin(), allowed.end(), [&](const auto* a, const auto* b) {
      return nearness(node, *gpu, *a) < nearness(node, *gpu, *b);
    });
    const RdmaPortFacts* best = nearest_active(node, *gpu, own.rate_mbps);
    const Nearness at = nearness(node, *gpu, own);
    if (best == nullptr || at == Nearness::unknown || nearness(node, *gpu, *best) >= at) continue;
    findings.on_rank(
        rank, fmt::format("of the adapters that NCCL may use, {} is the nearest to {}, over {}, though {} is "
                          "at {}",
                          own.device, gpu->name, to_string(at), best->device, to_string(nearness(node, *gpu, *best))));
  }
}

void check_counts(const JobFacts& job, Findings& findings) {
  std::map<std::size_t, std::vector<int>> ranks;
  for (const RankFacts& rank : job.ranks) {
    if (const std::size_t count = allowed_adapters(job.node_of(rank), rank).size(); count > 0) {
      ranks[count].push_back(rank.rank);
    }
  }
  if (ranks.size() < 2 || misses_adapter(job)) return;  // hca-missing reports why
  for (const auto& [count, same] : ranks) findings.on_ranks(same, fmt::format("NCCL would use {} adapters", count));
}

/// Whether each adapter of a rank is in its own network, with no known gateway.
bool has_rails(const JobFacts& job, const RankFacts& rank) {
  std::set<std::string> networks;
  std::size_t adapters = 0;
  for (const RdmaPortFacts* port : allowed_adapters(job.node_of(rank), rank)) {
    const std::string network = network_of(job, rank, *port);
    if (network.empty()) return false;
    networks.insert(network);
    ++adapters;
  }
  return adapters > 1 && networks.size() == adapters;
}

void check_rails(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const RankFacts& rank : job.ranks) {
    const auto is_one = [&](std::string_view name) {
      return std::strtoll(rank.variable(name).c_str(), nullptr, 0) == 1;
    };
    std::string setting;
    if (is_one("NCCL_CROSS_NIC")) setting = "NCCL_CROSS_NIC=1";
    if (is_one("NCCL_PXN_DISABLE")) setting += std::string(setting.empty() ? "" : ", ") + "NCCL_PXN_DISABLE=1";
    if (setting.empty() || !has_rails(job, rank)) continue;
    findings.on_rank(rank, fmt::format("{}, and each adapter is in a network of its own", setting));
  }
}

const RankFacts& rank_of(const JobFacts& job, int rank) { return job.ranks[static_cast<std::size_t>(rank)]; }

void check_hidden(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    if (node.ranks.size() < 2) continue;
    std::set<std::string> all;
    for (const int rank : node.ranks) all.insert(rank_of(job, rank).gpus.begin(), rank_of(job, rank).gpus.end());
    const auto may_use_one = [&](int rank) { return rank_of(job, rank).gpus_allowed == 1; };
    if (all.size() != node.ranks.size() || !std::all_of(node.ranks.begin(), node.ranks.end(), may_use_one)) continue;
    findings.on_node(node, fmt::format("each of {} ranks may use one GPU only", node.ranks.size()));
  }
}

void check_shared(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    std::map<std::string, std::vector<int>> users;
    for (const int rank : node.ranks) {
      const auto& gpus = rank_of(job, rank).gpus;
      if (gpus.size() == 1) users[gpus.front()].push_back(rank);
    }
    for (const auto& [gpu, ranks] : users) {
      if (ranks.size() > 1) findings.on_ranks(ranks, fmt::format("{} is the only GPU of {} ranks", gpu, ranks.size()));
    }
  }
}

void check_none(const JobFacts& job, Findings& findings) {
  const auto has = [](const RankFacts& rank) { return !rank.gpus.empty(); };
  if (std::none_of(job.ranks.begin(), job.ranks.end(), has)) return;
  for (const RankFacts& rank : job.ranks) {
    if (rank.gpus.empty()) findings.on_rank(rank, fmt::format("no GPU of {} on its node", rank.gpus_of_node));
  }
}

void check_models(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::vector<int>> models;
  for (const RankFacts& rank : job.ranks) {
    for (const std::string& model : rank.gpu_models) models[model].push_back(rank.rank);
  }
  if (models.size() < 2) return;
  for (const auto& [model, ranks] : models) findings.on_ranks(ranks, model);
}

void check_direct(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const bool rdma = std::any_of(node.facts.rdma.begin(), node.facts.rdma.end(), &is_active);
    if (!rdma || node.facts.nvidia_gpus == 0 || node.facts.peer_memory || node.facts.dma_buf) continue;
    findings.on_node(node, "neither nvidia_peermem is loaded nor NVIDIA's open kernel module on Linux 5.12 or newer");
  }
}

void check_acs(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    if (node.facts.acs_ports.empty()) continue;
    findings.on_node(node, fmt::format("{} PCIe ports redirect, the first is {}", node.facts.acs_ports.size(),
                                       node.facts.acs_ports.front()));
  }
}

void check_iommu(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    if (!node.facts.iommu.starts_with("DMA")) continue;
    findings.on_node(node, fmt::format("the IOMMU translates for its devices (type {})", node.facts.iommu));
  }
}

void check_cores(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const GpuFacts* gpu = own_gpu(job, rank);
    if (gpu == nullptr || gpu->cpus.empty() || rank.cpus.count() < 2) continue;  // one-core reports it
    if (std::strtoll(rank.variable("NCCL_IGNORE_CPU_AFFINITY").c_str(), nullptr, 0) != 0) continue;
    const CpuSet both = rank.cpus & gpu->cpus;
    if (both.count() > 1) continue;
    findings.on_rank(rank, fmt::format("processors {}, of which {} near to {} ({})", rank.cpus.to_string(),
                                       both.empty() ? "none is" : "one only is", gpu->name, gpu->cpus.to_string()));
  }
}

/// Whether NCCL allocates host memory with CUDA's virtual memory functions: from 2.24 on, if both are on.
bool allocates_by_cumem(const JobFacts& job, const RankFacts& rank) {
  constexpr Version kDoes{.major = 2, .minor = 24, .patch = 0};
  const std::string version = job.nccl_version(rank.rank);
  const auto off = [&](std::string_view name) {
    const std::string text = rank.variable(name);
    return !text.empty() && std::strtoll(text.c_str(), nullptr, 0) == 0;
  };
  return !version.empty() && Version::of(version) >= kDoes && !off("NCCL_CUMEM_ENABLE") &&
         !off("NCCL_CUMEM_HOST_ENABLE");
}

void check_cumem(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    if (rank.gpus.empty() || node.facts.nvidia_gpus == 0 || !allocates_by_cumem(job, rank)) continue;
    const GpuFacts* gpu = own_gpu(job, rank);
    if (!node.facts.numa) {
      findings.on_rank(rank, "this kernel shows no NUMA nodes, of which NCCL wants memory");
    } else if (gpu != nullptr && gpu->numa_node >= 0 && !rank.memory_nodes.empty() &&
               !rank.memory_nodes.contains(gpu->numa_node)) {
      findings.on_rank(rank, fmt::format("{} is at NUMA node {}, and the cgroup allows memory of {} only", gpu->name,
                                         gpu->numa_node, rank.memory_nodes.to_string()));
    }
  }
}

constexpr Rule kGpuRules[] = {
    {.id = "gpus-hidden",
     .severity = Severity::warning,
     .title = "ranks do not see the GPUs of their neighbours",
     .meaning =
         "CUDA cannot open a neighbour's memory on a GPU that the process may not use: NCCL goes through the host's "
         "memory or the network instead of NVLink.",
     .fix =
         "srun --gpus-per-node=N --gpu-bind=none instead of --gpus-per-task; each rank takes the GPU of its local rank",
     .check = &check_hidden},
    {.id = "gpu-shared",
     .severity = Severity::error,
     .title = "ranks share a GPU",
     .meaning = "NCCL refuses two ranks on one GPU ('Duplicate GPU detected').",
     .fix = "as many GPUs as ranks on each node; no CUDA_VISIBLE_DEVICES that is equal for all of them",
     .check = &check_shared},
    {.id = "gpu-none",
     .severity = Severity::error,
     .title = "some ranks have no GPU",
     .meaning = "Other ranks have one, so these fail, or the job falls back to processors.",
     .fix = "ask for GPUs on all nodes (--gpus-per-node), and look at CUDA_VISIBLE_DEVICES and nvidia-smi there",
     .check = &check_none},
    {.id = "gpu-models",
     .severity = Severity::info,
     .title = "ranks have different GPUs",
     .meaning = "Steps take as long as on the slowest GPU.",
     .fix = "srun --constraint=FEATURE, to get nodes of one kind",
     .check = &check_models},
    {.id = "gpu-direct",
     .severity = Severity::warning,
     .title = "RDMA adapters cannot reach the GPUs' memory",
     .meaning = "Everything between nodes is copied through the host's memory.",
     .fix = "modprobe nvidia-peermem, or NVIDIA's open kernel module (dma-buf) with Linux 5.12 or newer",
     .check = &check_direct},
    {.id = "pci-acs",
     .severity = Severity::warning,
     .title = "PCIe switches send packets between GPUs and adapters to the processor",
     .meaning = "Access Control Services block the direct path between devices under one switch: transfers "
                "are slow, and hang on some machines. Virtual machines need it, others do not.",
     .fix = "setpci -s PORT ECAP_ACS+6.w=0000 at boot, or switch ACS off in the firmware",
     .check = &check_acs},
    {.id = "iommu",
     .severity = Severity::warning,
     .title = "the IOMMU translates what GPUs and adapters send each other",
     .meaning = "Transfers between devices are slower, and on some machines hang or corrupt data.",
     .fix = "iommu=pt on the kernel's command line",
     .check = &check_iommu},
    {.id = "gpu-cores",
     .severity = Severity::warning,
     .title = "a rank may not run near to its GPU",
     .meaning =
         "NCCL's threads and the program's copies cross the connection between processors, or crowd on one core.",
     .fix = "srun --cpu-bind=none or --gpu-bind=closest; srun --ddp and ddprun bind to cores near to the GPU",
     .check = &check_cores},
    {.id = "cumem-host",
     .severity = Severity::warning,
     .title = "NCCL cannot have memory beside the GPU",
     .meaning =
         "It allocates buffers of the host on the GPU's NUMA node by CUDA's virtual memory functions, which fails "
         "there.",
     .fix = "NCCL_CUMEM_HOST_ENABLE=0 on all ranks, or srun --mem-bind=none",
     .check = &check_cumem},
};

constexpr Rule kAdapterRules[] = {
    {.id = "hca-far",
     .severity = Severity::info,
     .title = "NCCL may only use adapters that are further from the GPU than another one",
     .meaning = "Its data crosses the processor or the connection between processors: less bandwidth, and no GPUDirect "
                "beyond PXB.",
     .fix = "leave NCCL_IB_HCA to srun --ddp or ddprun, or name the near adapters, too",
     .check = &check_far},
    {.id = "hca-counts",
     .severity = Severity::warning,
     .title = "nodes have different numbers of adapters",
     .meaning =
         "NCCL uses as many as the node with the fewest has, over other paths than planned; 2.30 and newer refuse with "
         "NCCL_IGNORE_NET_MISMATCH=0.",
     .fix = "look for adapters that are down (ibstat), or name those that all nodes have in NCCL_IB_HCA",
     .check = &check_counts},
    {.id = "rails-crossed",
     .severity = Severity::warning,
     .title = "NCCL is told to send between networks that may not reach each other",
     .meaning =
         "Where each adapter has a network of its own (rails), another rail's adapters are reached by routing only: "
         "connecting queue pairs fails or times out.",
     .fix = "unset NCCL_CROSS_NIC and NCCL_PXN_DISABLE",
     .check = &check_rails},
};

}  // namespace

std::span<const Rule> gpu_adapter_rules() { return kAdapterRules; }
std::span<const Rule> gpu_rules() { return kGpuRules; }

}  // namespace ddp::tools::doctor
