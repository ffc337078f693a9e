// Rules on the RDMA adapters that NCCL will take for each GPU, compared with what is near and with libddp's placement.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/families.hpp"
#include "doctor/nccl_adapters.hpp"
#include "doctor/nccl_rdma.hpp"

namespace ddp::tools::doctor {
namespace {

bool has_device(const std::vector<NetDevice>& devices, const std::string& name) {
  return std::any_of(devices.begin(), devices.end(), [&](const NetDevice& device) {
    return std::any_of(device.ports.begin(), device.ports.end(),
                       [&](const RdmaPortFacts* port) { return port->device == name; });
  });
}

std::string names_of(const std::vector<NetDevice>& devices) {
  std::string text;
  for (const NetDevice& device : devices) text += (text.empty() ? "" : ", ") + device.name();
  return text;
}

/// The nearest active port that is not much slower than the one that is taken.
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
    const auto taken = predict_adapters(job, rank);
    if (!taken) continue;
    const NodeRecord& node = job.node_of(rank);
    const GpuFacts& gpu = *own_gpu(job, rank);
    const RdmaPortFacts& port = *taken->front().ports.front();
    const RdmaPortFacts* best = nearest_active(node, gpu, port.rate_mbps);
    if (best == nullptr || nearness(node, gpu, *best) >= nearness(node, gpu, port)) continue;
    findings.on_rank(
        rank, fmt::format("NCCL would use {} for {}, over {}, though {} is at {}", names_of(*taken), gpu.name,
                          to_string(nearness(node, gpu, port)), best->device, to_string(nearness(node, gpu, *best))));
  }
}

/// What NCCL takes for the other ranks of the node.
bool is_used_by_another(const JobFacts& job, const RankFacts& rank, const std::string& device) {
  const NodeRecord& node = job.node_of(rank);
  return std::any_of(node.ranks.begin(), node.ranks.end(), [&](int other) {
    if (other == rank.rank) return false;
    const auto taken = predict_adapters(job, job.ranks[static_cast<std::size_t>(other)]);
    return !taken || has_device(*taken, device);
  });
}

void check_idle(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const auto local = static_cast<std::size_t>(rank.local_rank);
    const auto taken = predict_adapters(job, rank);
    if (!taken || local >= node.facts.placed.size()) continue;
    const PlacedRank& placed = node.facts.placed[local];
    const GpuFacts& gpu = *own_gpu(job, rank);
    if (placed.adapters.empty() || placed.gpu != gpu.name) continue;
    // Among equally near ones it does not matter who has which, but that none stays idle while another has two ranks.
    const std::string& own = placed.adapters.front();
    const auto port = std::find_if(node.facts.rdma.begin(), node.facts.rdma.end(),
                                   [&](const RdmaPortFacts& each) { return each.device == own; });
    if (port == node.facts.rdma.end() || !is_active(*port) || has_device(*taken, own)) continue;
    if (nearness(node, gpu, *port) != nearness(node, gpu, *taken->front().ports.front())) continue;  // hca-far's
    if (is_used_by_another(job, rank, own)) continue;
    findings.on_rank(rank, fmt::format("NCCL would use {} for {}, and nobody {}, which libddp's placement gives it",
                                       names_of(*taken), gpu.name, own));
  }
}

void check_counts(const JobFacts& job, Findings& findings) {
  std::map<std::size_t, std::vector<int>> ranks;
  for (const RankFacts& rank : job.ranks) {
    if (const std::size_t count = net_devices(job.node_of(rank), rank).size(); count > 0) {
      ranks[count].push_back(rank.rank);
    }
  }
  if (ranks.size() < 2 || misses_adapter(job)) return;  // hca-missing tells why
  for (const auto& [count, same] : ranks) findings.on_ranks(same, fmt::format("NCCL would use {} adapters", count));
}

/// Whether each adapter of a rank is in a network of its own, from which no gateway is known.
bool has_rails(const JobFacts& job, const RankFacts& rank) {
  std::set<std::string> networks;
  std::size_t ports = 0;
  for (const NetDevice& device : net_devices(job.node_of(rank), rank)) {
    const std::string network = network_of(job, rank, *device.ports.front());
    if (network.empty()) return false;
    networks.insert(network);
    ++ports;
  }
  return ports > 1 && networks.size() == ports;
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

constexpr Rule kAdapterRules[] = {
    {.id = "hca-far",
     .severity = Severity::info,
     .title = "NCCL would use an adapter that is further from the GPU than another one",
     .meaning = "Its data crosses the processor or the connection between processors: less bandwidth, and no GPUDirect "
                "beyond PXB.",
     .fix = "leave NCCL_IB_HCA to srun --ddp or ddprun, or name the near adapters, too",
     .check = &check_far},
    {.id = "hca-other",
     .severity = Severity::info,
     .title = "NCCL would leave an adapter idle that libddp's placement uses",
     .meaning = "GPUs that are equally near to several adapters then share one of them.",
     .fix = "NCCL_NETDEVS_POLICY=ALL (2.28 and newer), or a topology file that tells the GPUs apart",
     .check = &check_idle},
    {.id = "hca-counts",
     .severity = Severity::warning,
     .title = "nodes have different numbers of adapters",
     .meaning = "NCCL uses as many as the poorest node has, over other ways than planned; 2.30 and newer refuse with "
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

}  // namespace ddp::tools::doctor
