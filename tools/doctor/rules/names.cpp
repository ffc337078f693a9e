// Rules on host names, what names resolve to, and clocks.
#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

// Far above what separates the nodes' reading of their clocks after a fence; munge refuses at 300 s.
constexpr std::int64_t kMostSkewMs = 2000;

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

const RankFacts& first_rank(const JobFacts& job, const NodeRecord& node) {
  return job.ranks[static_cast<std::size_t>(node.ranks.front())];
}

/// With or without a domain.
bool same_host(const std::string& a, const std::string& b) {
  const auto dot = [](const std::string& name) { return std::min(name.find('.'), name.size()); };
  const bool same = a.compare(0, dot(a), b, 0, dot(b)) == 0;
  return same && (a == b || dot(a) == a.size() || dot(b) == b.size());
}

/// What NCCL takes for the host's identity (misc/utils.cc, getHostHash).
std::string identity(const JobFacts& job, const NodeRecord& node) {
  const std::string given = first_rank(job, node).variable("NCCL_HOSTID");
  return given.empty() ? node.host + " " + node.facts.boot_id : "NCCL_HOSTID=" + given;
}

void check_identity(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::vector<const NodeRecord*>> nodes;
  for (const NodeRecord& node : job.nodes) nodes[identity(job, node)].push_back(&node);
  for (const auto& [name, same] : nodes) {
    if (same.size() < 2) continue;
    const bool given = name.starts_with("NCCL_HOSTID=");
    for (const NodeRecord* node : same) {
      findings.on_node(*node,
                       given ? fmt::format("{} is set on {} nodes", name, same.size())
                             : fmt::format("{} nodes have the host name {} and one boot id", same.size(), node->host),
                       given ? "unset NCCL_HOSTID" : "");
    }
  }
}

bool has_interface(const NodeFacts& node, std::string_view name) {
  return std::any_of(node.interfaces.begin(), node.interfaces.end(),
                     [&](const InterfaceFacts& each) { return each.name == name && !each.addresses.empty(); });
}

/// Whether all its ranks name interfaces to Gloo, which then does not ask for the host's name. PyTorch opens each
/// interface of the list, and fails where one is not there (c10d, ProcessGroupGloo::createDeviceForInterface).
bool gloo_is_told(const JobFacts& job, const NodeRecord& node) {
  return std::all_of(node.ranks.begin(), node.ranks.end(), [&](int rank) {
    const std::string names = job.ranks[static_cast<std::size_t>(rank)].variable("GLOO_SOCKET_IFNAME");
    std::string_view left = names;
    while (!left.empty()) {
      const std::string_view name = left.substr(0, left.find(','));
      if (!has_interface(node.facts, name)) return false;
      left.remove_prefix(std::min(name.size() + 1, left.size()));
    }
    return !names.empty();
  });
}

void check_own_name(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const NodeRecord& node : job.nodes) {
    const auto& addresses = node.facts.own_name.addresses;
    if (node.facts.own_name.unanswered || gloo_is_told(job, node)) continue;
    if (addresses.empty()) {
      findings.on_node(node, fmt::format("{} does not resolve on itself", node.host),
                       fmt::format("add {} with its address to /etc/hosts or DNS", node.host));
    } else if (is_loopback(addresses.front())) {
      findings.on_node(node, fmt::format("{} resolves to {} on itself", node.host, addresses.front()));
    }
  }
}

void check_master(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const NodeRecord& node : job.nodes) {
    const std::string master = first_rank(job, node).variable("MASTER_ADDR");
    if (master.empty() || node.facts.master.unanswered) continue;
    if (same_host(master, node.host)) continue;  // Debian's 127.0.1.1 is this node, and here that is right
    const auto& addresses = node.facts.master.addresses;
    if (addresses.empty()) {
      findings.on_node(node, fmt::format("MASTER_ADDR={} does not resolve", master));
    } else if (is_loopback(addresses.front())) {
      findings.on_node(node, fmt::format("MASTER_ADDR={} is {}, this host itself", master, addresses.front()));
    }
  }
}

void check_master_port(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    if (!node.facts.master_port_taken) continue;
    const std::string port = first_rank(job, node).variable("MASTER_PORT");
    findings.on_node(
        node, fmt::format("MASTER_PORT={}: another program listens there", port),
        fmt::format("another MASTER_PORT, or leave it to srun --ddp or ddprun; ss -tlnp sport = :{} names it", port));
  }
}

void check_clocks(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  std::vector<std::int64_t> clocks;
  for (const NodeRecord& node : job.nodes) clocks.push_back(node.probes.clock_ms);
  std::nth_element(clocks.begin(), clocks.begin() + static_cast<std::ptrdiff_t>(clocks.size() / 2), clocks.end());
  const std::int64_t middle = clocks[clocks.size() / 2];
  for (const NodeRecord& node : job.nodes) {
    const std::int64_t ahead = node.probes.clock_ms - middle;
    if (ahead <= kMostSkewMs && ahead >= -kMostSkewMs) continue;
    findings.on_node(node, fmt::format("its clock is {} s {} the others'", (ahead < 0 ? -ahead : ahead) / 1000,
                                       ahead < 0 ? "behind" : "ahead of"));
  }
}

void check_kernels(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::vector<const NodeRecord*>> nodes;
  for (const NodeRecord& node : job.nodes) nodes[node.facts.kernel].push_back(&node);
  if (nodes.size() < 2) return;
  for (const auto& [kernel, same] : nodes) {
    for (const NodeRecord* node : same) findings.on_node(*node, fmt::format("Linux {}", kernel));
  }
}

constexpr Rule kNameRules[] = {
    {.id = "host-identity",
     .severity = Severity::error,
     .title = "NCCL takes several nodes for one",
     .meaning =
         "NCCL tells hosts apart by host name and boot id, or by NCCL_HOSTID alone. Where they are equal it tries to "
         "share memory between nodes, or reports a duplicate GPU.",
     .fix = "give each node its own host name, or NCCL_HOSTID=$SLURM_NODEID in each task",
     .check = &check_identity},
    {.id = "own-name",
     .severity = Severity::warning,
     .title = "host name resolves to loopback, or not at all",
     .meaning = "Gloo, and rendezvous programs that publish their host's name, give other nodes this address.",
     .fix = "put the node's real address beside its name in /etc/hosts, or set GLOO_SOCKET_IFNAME",
     .check = &check_own_name},
    {.id = "master-address",
     .severity = Severity::error,
     .title = "MASTER_ADDR does not lead to the first node",
     .meaning = "Ranks of this node wait for a missing store, until PyTorch's timeout of several minutes.",
     .fix =
         "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1), or leave it to srun --ddp or ddprun",
     .check = &check_master},
    {.id = "master-port",
     .severity = Severity::error,
     .title = "MASTER_PORT is taken",
     .meaning = "Rank 0 cannot serve the store there (EADDRINUSE), or ranks talk to that of another job. Often a job "
                "that has not "
                "ended, or another user's with the same default.",
     .fix = "another MASTER_PORT, or leave it to srun --ddp or ddprun, which let the kernel choose",
     .check = &check_master_port},
    {.id = "clock-skew",
     .severity = Severity::warning,
     .title = "clocks of nodes differ",
     .meaning = "Logs cannot be compared, files seem to come from the future, and munge refuses at five minutes.",
     .fix = "start chrony or ntpd on these nodes: timedatectl set-ntp true",
     .check = &check_clocks},
    {.id = "kernels-differ",
     .severity = Severity::info,
     .title = "nodes run different kernels",
     .meaning = "Nothing is wrong by itself; it explains why nodes behave differently.",
     .fix = "update the nodes to one image",
     .check = &check_kernels},
};

}  // namespace

std::span<const Rule> name_rules() { return kNameRules; }

}  // namespace ddp::tools::doctor
