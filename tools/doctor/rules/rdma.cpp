// Rules on RDMA devices and NCCL's filter for these.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/facts.hpp"
#include "doctor/nccl_network.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

void check_unused(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const auto active = std::count_if(node.facts.rdma.begin(), node.facts.rdma.end(), &is_active);
    if (active == 0) continue;
    if (rdma_is_disabled(rank)) {
      findings.on_rank(rank,
                       fmt::format("NCCL_IB_DISABLE={} leaves {} active RDMA ports unused",
                                   rank.variable("NCCL_IB_DISABLE"), active),
                       "unset NCCL_IB_DISABLE");
    } else if (network_is_socket(rank.variable("NCCL_NET"))) {
      findings.on_rank(rank, fmt::format("NCCL_NET=Socket leaves {} active RDMA ports unused", active),
                       "unset NCCL_NET");
    } else if (taken_by_nccl(node, rank).empty()) {
      findings.on_rank(
          rank, fmt::format("NCCL_IB_HCA={} leaves none of {} active RDMA ports", rank.variable("NCCL_IB_HCA"), active),
          "unset NCCL_IB_HCA, or name devices of ibv_devices");
    } else if (!rank.verbs_problem.empty()) {
      findings.on_rank(rank, fmt::format("{}, so {} active RDMA ports are unused", rank.verbs_problem, active),
                       "install rdma-core; containers: mount /dev/infiniband (--device=/dev/infiniband)");
    }
  }
}

void check_devices(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string problem = missing_adapter(job.node_of(rank), rank);
    if (!problem.empty()) {
      findings.on_rank(rank, fmt::format("NCCL_IB_HCA={}: {}", rank.variable("NCCL_IB_HCA"), problem));
    }
  }
}

void check_hca_prefix(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string wanted = rank.variable("NCCL_IB_HCA");
    if (wanted.empty() || wanted.starts_with('^') || wanted.starts_with('=')) continue;
    const auto& ports = job.node_of(rank).facts.rdma;
    for (const std::string& name : names_in_list(wanted)) {
      // A name that is whole for one and the beginning of another. "mlx5" for mlx5_0 and mlx5_1 is meant so.
      const auto is_whole = [&](const RdmaPortFacts& port) { return port.device == name; };
      if (std::none_of(ports.begin(), ports.end(), is_whole)) continue;
      for (const RdmaPortFacts& port : ports) {
        if (is_whole(port) || !port.device.starts_with(name) || !is_active(port)) continue;
        findings.on_rank(rank, fmt::format("NCCL_IB_HCA={} also means {}", wanted, port.device),
                         fmt::format("NCCL_IB_HCA=={}", wanted));
      }
    }
  }
}

void check_mixed(const JobFacts& job, Findings& findings) {
  std::set<std::string> layers;
  for (const RankFacts& rank : job.ranks) {
    for (const RdmaPortFacts* port : taken_by_nccl(job.node_of(rank), rank)) layers.insert(port->link_layer);
  }
  if (!layers.contains("InfiniBand") || !layers.contains("Ethernet")) return;
  for (const RankFacts& rank : job.ranks) {
    std::string ethernet;
    for (const RdmaPortFacts* port : taken_by_nccl(job.node_of(rank), rank)) {
      if (port->link_layer == "Ethernet") ethernet += fmt::format("{}{}", ethernet.empty() ? "" : ",", port->device);
    }
    if (ethernet.empty()) continue;
    findings.on_rank(rank, fmt::format("NCCL would use {} (Ethernet) beside InfiniBand", ethernet),
                     fmt::format("NCCL_IB_HCA=^={}", ethernet));
  }
}

/// Calls @p look with each RoCE port that a rank's NCCL takes, where its addresses are known.
template <class Look>
void each_roce_port(const JobFacts& job, Look look) {
  for (const RankFacts& rank : job.ranks) {
    if (!takes_rdma(job.node_of(rank), rank)) continue;
    for (const RdmaPortFacts* port : taken_by_nccl(job.node_of(rank), rank)) {
      if (port->gids_known) look(rank, *port);
    }
  }
}

void check_gids(const JobFacts& job, Findings& findings) {
  each_roce_port(job, [&](const RankFacts& rank, const RdmaPortFacts& port) {
    if (wanted_gid(rank) >= 0 || rank.variable("NCCL_IB_ROCE_VERSION_NUM") == "1") return;
    const bool ipv6 = rank.variable("NCCL_IB_ADDR_FAMILY") == "AF_INET6";
    const auto index = predict_gid(port, rank, job.nccl_version(rank.rank));
    const GidFacts* row = index ? row_at(port, *index) : nullptr;
    if (!index || (row != nullptr && is_usable(*row, ipv6))) return;
    const auto usable = [&](const GidFacts& gid) { return is_usable(gid, ipv6); };
    if (std::none_of(port.gids.begin(), port.gids.end(), usable)) {
      findings.on_rank(rank, fmt::format("{}:{} has no RoCE v2 address of {}", port.device, port.port,
                                         ipv6 ? "IPv6 but link-local ones" : "IPv4"));
    } else {
      findings.on_rank(rank, fmt::format("NCCL would take row {} of {}:{}, {}", *index, port.device, port.port,
                                         row == nullptr ? "which is empty" : row->type + " " + row->gid));
    }
  });
}

void check_gid_index(const JobFacts& job, Findings& findings) {
  each_roce_port(job, [&](const RankFacts& rank, const RdmaPortFacts& port) {
    const auto index = predict_gid(port, rank, {});
    if (wanted_gid(rank) < 0 || !index) return;
    const GidFacts* row = row_at(port, *index);
    if (row != nullptr && (is_usable(*row, false) || is_usable(*row, true))) return;
    findings.on_rank(rank, fmt::format("NCCL_IB_GID_INDEX={}: this row of {}:{} is {}", *index, port.device, port.port,
                                       row == nullptr           ? "empty"
                                       : row->type != "RoCE v2" ? "not RoCE v2"
                                                                : "link-local"));
  });
}

void check_gid_set(const JobFacts& job, Findings& findings) {
  each_roce_port(job, [&](const RankFacts& rank, const RdmaPortFacts& port) {
    const std::string version = job.nccl_version(rank.rank);
    if (wanted_gid(rank) < 0 || version.empty() || Version::of(version) < kChoosesGid) return;
    const GidFacts* row = row_at(port, wanted_gid(rank));
    if (row == nullptr || !(is_usable(*row, false) || is_usable(*row, true))) return;  // roce-gid-index'
    findings.on_rank(rank, fmt::format("NCCL_IB_GID_INDEX={} with NCCL {}", wanted_gid(rank), version));
  });
}

void check_gid_family(const JobFacts& job, Findings& findings) {
  std::map<bool, std::map<std::string, std::vector<int>>> ranks;  // by whether it is IPv6, and port
  each_roce_port(job, [&](const RankFacts& rank, const RdmaPortFacts& port) {
    const auto index = predict_gid(port, rank, job.nccl_version(rank.rank));
    const GidFacts* row = index ? row_at(port, *index) : nullptr;
    for (const bool ipv6 : {false, true}) {
      if (row != nullptr && is_usable(*row, ipv6)) {
        ranks[ipv6][fmt::format("row {} of {}:{}", *index, port.device, port.port)].push_back(rank.rank);
      }
    }
  });
  if (ranks.size() < 2) return;
  for (const auto& [ipv6, ports] : ranks) {
    for (const auto& [port, same] : ports) {
      findings.on_ranks(same, fmt::format("NCCL would take {}, of {}", port, ipv6 ? "IPv6" : "IPv4"));
    }
  }
}

// InfiniBand Architecture Specification, 10.9.1.1: the upper bit of a partition key; without it, members do not talk to
// each other.
constexpr std::int64_t kFullMember = 0x8000;

void check_partition(const JobFacts& job, Findings& findings) {
  std::map<std::int64_t, std::map<std::string, std::vector<int>>> ranks;  // by partition and port
  for (const RankFacts& rank : job.ranks) {
    if (!takes_rdma(job.node_of(rank), rank)) continue;
    const auto row = std::max<long long>(std::strtoll(rank.variable("NCCL_IB_PKEY").c_str(), nullptr, 0), 0);
    for (const RdmaPortFacts* port : taken_by_nccl(job.node_of(rank), rank)) {
      if (port->pkeys.empty()) continue;  // unknown
      const auto key =
          row < static_cast<long long>(port->pkeys.size()) ? port->pkeys[static_cast<std::size_t>(row)] : 0;
      const std::string name = fmt::format("row {} of {}:{}", row, port->device, port->port);
      if (key == 0) {
        findings.on_rank(rank, name + " has no partition");
      } else if ((key & kFullMember) == 0) {
        findings.on_rank(rank,
                         fmt::format("{} has partition {:#06x}, of which the port is a limited member", name, key));
      } else {
        ranks[key][name].push_back(rank.rank);
      }
    }
  }
  if (ranks.size() < 2) return;
  for (const auto& [key, ports] : ranks) {
    for (const auto& [port, same] : ports) findings.on_ranks(same, fmt::format("{} has partition {:#06x}", port, key));
  }
}

constexpr Rule kRdmaRules[] = {
    {.id = "rdma-unused",
     .severity = Severity::warning,
     .title = "NCCL would not use the RDMA network",
     .meaning = "A variable, or what a container lacks, keeps NCCL from the adapters; it then silently uses TCP, "
                "many times slower.",
     .fix = "unset the variable",
     .check = &check_unused},
    {.id = "hca-missing",
     .severity = Severity::error,
     .title = "NCCL_IB_HCA names an adapter that is missing or not active",
     .meaning = "NCCL silently uses the others, or TCP; ranks then differ in their number of adapters.",
     .fix = "correct the list by ibv_devices and ibstat; put it into /etc/nccl.conf where nodes differ",
     .check = &check_devices},
    {.id = "hca-prefix",
     .severity = Severity::warning,
     .title = "NCCL_IB_HCA means more adapters than it names",
     .meaning = "Names are prefixes: mlx5_1 is also mlx5_10 to mlx5_19.",
     .fix = "put '=' before the list",
     .check = &check_hca_prefix},
    {.id = "link-layers-mixed",
     .severity = Severity::error,
     .title = "NCCL would mix InfiniBand and Ethernet",
     .meaning =
         "Ports of the two do not reach each other: connecting queue pairs fails, or hangs until a timeout. Often the "
         "Ethernet ones are for storage or management.",
     .fix = "exclude those that are not for training: NCCL_IB_HCA=^=NAME",
     .check = &check_mixed},
    {.id = "roce-gid",
     .severity = Severity::error,
     .title = "a RoCE port has no address that NCCL can use",
     .meaning =
         "NCCL 2.21 and newer take a RoCE v2 address of IPv4. Without one it takes the first row, a link-local one of "
         "RoCE v1: connecting queue pairs fails or times out. In containers the table shows addresses of the "
         "interfaces in their network namespace only.",
     .fix =
         "give the port's interface an IPv4 address; containers: the host's network; or NCCL_IB_ADDR_FAMILY=AF_INET6",
     .check = &check_gids},
    {.id = "roce-gid-index",
     .severity = Severity::error,
     .title = "NCCL_IB_GID_INDEX names an unusable row",
     .meaning = "The order of rows differs between nodes and adapters, and changes when interfaces go down and up.",
     .fix = "unset NCCL_IB_GID_INDEX: NCCL 2.21 and newer choose the row",
     .check = &check_gid_index},
    {.id = "roce-gid-set",
     .severity = Severity::warning,
     .title = "NCCL_IB_GID_INDEX fixes what NCCL chooses by itself",
     .meaning = "Its row is the right one now. Rows move when interfaces go down and up or containers start, and one "
                "number stands for all adapters.",
     .fix = "unset NCCL_IB_GID_INDEX; NCCL_IB_ADDR_RANGE=NETWORK/BITS chooses among several networks",
     .check = &check_gid_set},
    {.id = "roce-gid-family",
     .severity = Severity::error,
     .title = "RoCE ports would use addresses of different families",
     .meaning = "A port with an IPv4 address does not reach one with an IPv6 address: connecting queue pairs fails.",
     .fix = "unset NCCL_IB_GID_INDEX, and NCCL_IB_ADDR_FAMILY equal on all ranks",
     .check = &check_gid_family},
    {.id = "ib-partition",
     .severity = Severity::warning,
     .title = "InfiniBand ports are not full members of one partition",
     .meaning = "Ports of different partitions, and limited members of one, do not reach each other.",
     .fix = "NCCL_IB_PKEY=ROW with the row of the job's partition, or correct partitions.conf of the subnet manager",
     .check = &check_partition},
};

}  // namespace

std::span<const Rule> rdma_rules() { return kRdmaRules; }

}  // namespace ddp::tools::doctor
