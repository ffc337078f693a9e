// Rules on RDMA devices and NCCL's filter of them.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "doctor/families.hpp"
#include "doctor/nccl_rdma.hpp"

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
    }
  }
}

/// "=mlx5_0:1,mlx5_1" as names without the signs before the list and the ports.
std::vector<std::string> names_in_list(std::string_view list) {
  while (!list.empty() && (list.front() == '^' || list.front() == '=')) list.remove_prefix(1);
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    if (const auto name = entry.substr(0, entry.find(':')); !name.empty()) names.emplace_back(name);
  }
  return names;
}

void check_devices(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const std::string wanted = rank.variable("NCCL_IB_HCA");
    const bool exact = wanted.starts_with('=') || wanted.starts_with("^=");
    if (node.facts.rdma.empty()) continue;  // nodes of another kind; NCCL uses sockets there
    for (const std::string& name : names_in_list(wanted)) {
      const auto named = [&](const RdmaPortFacts& port) {
        return exact ? port.device == name : port.device.starts_with(name);
      };
      const auto found = std::find_if(node.facts.rdma.begin(), node.facts.rdma.end(), named);
      if (found == node.facts.rdma.end()) {
        findings.on_rank(rank, fmt::format("NCCL_IB_HCA={}: there is no {}", wanted, name));
      } else if (!wanted.starts_with('^') &&
                 std::none_of(node.facts.rdma.begin(), node.facts.rdma.end(),
                              [&](const auto& port) { return named(port) && is_active(port); })) {
        findings.on_rank(rank, fmt::format("NCCL_IB_HCA={}: {} is {}", wanted, name, found->state));
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

/// NCCL_IB_GID_INDEX as NCCL reads it; -1: it chooses (from 2.21 on).
long long gid_index(const RankFacts& rank) {
  const std::string text = rank.variable("NCCL_IB_GID_INDEX");
  return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 0);
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
    if (gid_index(rank) >= 0 || rank.variable("NCCL_IB_ROCE_VERSION_NUM") == "1") return;
    const bool ipv6 = rank.variable("NCCL_IB_ADDR_FAMILY") == "AF_INET6";
    const auto usable = [&](const GidFacts& gid) { return is_usable(gid, ipv6); };
    if (port.gids_cut || std::any_of(port.gids.begin(), port.gids.end(), usable)) return;
    findings.on_rank(rank, fmt::format("{}:{} has no RoCE v2 address of {}", port.device, port.port,
                                       ipv6 ? "IPv6 but link-local ones" : "IPv4"));
  });
}

void check_gid_index(const JobFacts& job, Findings& findings) {
  each_roce_port(job, [&](const RankFacts& rank, const RdmaPortFacts& port) {
    const long long index = gid_index(rank);
    if (index < 0) return;
    const auto row =
        std::find_if(port.gids.begin(), port.gids.end(), [&](const GidFacts& gid) { return gid.index == index; });
    const bool found = row != port.gids.end();
    if (!found && port.gids_cut && index > port.gids.back().index) return;
    if (found && (is_usable(*row, false) || is_usable(*row, true))) return;
    findings.on_rank(rank, fmt::format("NCCL_IB_GID_INDEX={}: this row of {}:{} is {}", index, port.device, port.port,
                                       !found                   ? "empty"
                                       : row->type != "RoCE v2" ? "not RoCE v2"
                                                                : "link-local"));
  });
}

constexpr Rule kRdmaRules[] = {
    {.id = "rdma-unused",
     .severity = Severity::warning,
     .title = "NCCL would not use the RDMA network",
     .meaning = "A variable keeps NCCL from the adapters; it then uses TCP without a word, many times slower.",
     .fix = "unset the variable",
     .check = &check_unused},
    {.id = "hca-missing",
     .severity = Severity::error,
     .title = "NCCL_IB_HCA names an adapter that is not there, or not active",
     .meaning = "NCCL says nothing of it and uses the others, or TCP; ranks then differ in their number of adapters.",
     .fix = "correct the list by ibv_devices and ibstat; put it into /etc/nccl.conf where nodes differ",
     .check = &check_devices},
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
};

}  // namespace

std::span<const Rule> rdma_rules() { return kRdmaRules; }

}  // namespace ddp::tools::doctor
