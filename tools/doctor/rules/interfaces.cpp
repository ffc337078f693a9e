// Rules on the interfaces that NCCL will choose, compared with what libddp chooses.
#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "doctor/families.hpp"
#include "doctor/nccl_interfaces.hpp"
#include "doctor/nccl_rdma.hpp"
#include "topology/network/interface_agreement.hpp"

namespace ddp::tools::doctor {
namespace {

std::string list(const std::vector<InterfaceFacts>& interfaces) {
  std::string text;
  for (const InterfaceFacts& each : interfaces) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", each.name,
                        !each.running            ? " (down)"
                        : each.addresses.empty() ? " (no address)"
                                                 : "");
  }
  return text;
}

/// "NCCL_SOCKET_IFNAME==eth0", by libddp's choice on the node, if the others reach it; else empty.
std::string better_name(const JobFacts& job, const NodeRecord& node) {
  for (const UsedInterface& use : used_by_libddp(job)) {
    if (use.node != &node || is_local_only(use.choice)) continue;
    if (!reachability(job, node, use.choice.address.address).failed.empty()) continue;
    return fmt::format("NCCL_SOCKET_IFNAME=={}", use.choice.interface->name);
  }
  return {};
}

void check_missing(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const std::string wanted = rank.variable("NCCL_SOCKET_IFNAME");
    if (!predict_socket_interfaces(node.facts.interfaces, rank.environment).empty()) {
      if (!node.facts.candidates_failure.empty()) findings.on_rank(rank, node.facts.candidates_failure);
      continue;
    }
    findings.on_rank(rank, fmt::format("{} matches no usable interface: there are {}",
                                       wanted.empty() ? std::string("NCCL's rule") : "NCCL_SOCKET_IFNAME=" + wanted,
                                       list(node.facts.interfaces)));
  }
}

void check_local(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const UsedInterface& use : used_by_nccl(job)) {
    if (!is_local_only(use.choice)) continue;
    const bool link_local = use.choice.address.ipv6 || use.choice.address.address.starts_with("169.254.");
    findings.on_ranks(
        use.ranks,
        link_local ? fmt::format("NCCL would use {}, which has a link-local address only", use.choice.interface->name)
                   : fmt::format("NCCL would use {} ({}), which reaches only this host", use.choice.interface->name,
                                 use.choice.address.address),
        better_name(job, *use.node));
  }
}

std::string_view words(ProbeEnd end) {
  switch (end) {
    case ProbeEnd::reached: return "it answers";
    case ProbeEnd::silent: return "no answer";
    case ProbeEnd::refused: return "connection refused (ECONNREFUSED), perhaps by a host with the same address";
    case ProbeEnd::unreachable: return "no route";
  }
  return "";
}

/// By node: whether no packets pass between it and any other, over what NCCL uses.
std::vector<bool> cut_off(const JobFacts& job, const std::vector<UsedInterface>& uses) {
  std::vector<NodePair> pairs;
  for (const UsedInterface& use : uses) {
    const Reachability seen = reachability(job, *use.node, use.choice.address.address);
    for (const NodeRecord* from : seen.tried) {
      const bool failed = std::find(seen.failed.begin(), seen.failed.end(), from) != seen.failed.end();
      pairs.push_back({.from = number_of(job, *from), .to = number_of(job, *use.node), .failed = failed});
    }
  }
  return nodes_at_fault(pairs, job.nodes.size());
}

void check_unreachable(const JobFacts& job, Findings& findings) {
  const auto uses = used_by_nccl(job);
  const auto blamed = cut_off(job, uses);
  const auto is_blamed = [&](const NodeRecord& node) { return blamed[static_cast<std::size_t>(number_of(job, node))]; };
  for (const UsedInterface& use : uses) {
    if (is_local_only(use.choice)) continue;
    Reachability seen = reachability(job, *use.node, use.choice.address.address);
    std::erase_if(seen.failed, [&](const NodeRecord* node) {
      // Nodes without an interface of their own are told of by other rules.
      const bool without = std::none_of(uses.begin(), uses.end(), [&](const auto& own) { return own.node == node; });
      return without || (is_blamed(*node) && !is_blamed(*use.node));
    });
    if (seen.failed.empty()) continue;
    std::string from = "any other node";
    if (seen.failed.size() < seen.tried.size()) {
      from.clear();
      for (const NodeRecord* node : seen.failed) from += fmt::format("{}{}", from.empty() ? "" : ", ", node->host);
    }
    const auto subnet = topology::Subnet::of(use.choice.address);
    findings.on_ranks(
        use.ranks,
        fmt::format("NCCL would use {} ({}), which is not reached from {}: {}", use.choice.interface->name,
                    subnet ? subnet->to_string() : use.choice.address.address, from, words(seen.worst)),
        better_name(job, *use.node));
  }
}

void check_other(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  const auto chosen = used_by_libddp(job);
  for (const UsedInterface& use : used_by_nccl(job)) {
    if (!use.for_bootstrap || is_local_only(use.choice)) continue;
    // With RDMA only NCCL's beginning goes over this interface: a slow one is as good, and usual.
    if (std::all_of(use.ranks.begin(), use.ranks.end(),
                    [&](int rank) { return takes_rdma(*use.node, job.ranks[static_cast<std::size_t>(rank)]); }))
      continue;
    if (!reachability(job, *use.node, use.choice.address.address).failed.empty()) continue;  // interface-unreachable's
    for (const UsedInterface& ours : chosen) {
      if (ours.node != use.node || ours.choice.interface == use.choice.interface) continue;
      findings.on_ranks(use.ranks,
                        fmt::format("NCCL would begin with {}, libddp with {}", use.choice.interface->name,
                                    ours.choice.interface->name),
                        fmt::format("NCCL_SOCKET_IFNAME=={}", ours.choice.interface->name));
    }
  }
}

void check_prefix(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string wanted = rank.variable("NCCL_SOCKET_IFNAME");
    if (wanted.size() < 2 || wanted.starts_with('^') || wanted.starts_with('=')) continue;
    const auto choices = predict_socket_interfaces(job.node_of(rank).facts.interfaces, rank.environment);
    const auto exact = [&](const SocketChoice& choice) {
      const std::string padded = "," + wanted + ",";
      return padded.find("," + choice.interface->name + ",") != std::string::npos;
    };
    // A name that is whole for one and the beginning of another: eth1 and eth10. "ib" for ib0 and ib1 is meant so.
    if (!std::any_of(choices.begin(), choices.end(), exact)) continue;
    for (const SocketChoice& choice : choices) {
      if (exact(choice)) continue;
      findings.on_rank(rank, fmt::format("NCCL_SOCKET_IFNAME={} also means {}", wanted, choice.interface->name),
                       fmt::format("NCCL_SOCKET_IFNAME=={}", wanted));
    }
  }
}

void check_one_subnet(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  const auto uses = used_by_nccl(job);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    for (std::size_t other = i + 1; other < uses.size(); ++other) {
      const UsedInterface &a = uses[i], &b = uses[other];
      if (a.node != b.node || a.choice.interface == b.choice.interface || is_local_only(a.choice)) continue;
      const auto subnet = topology::Subnet::of(a.choice.address);
      if (!subnet || subnet != topology::Subnet::of(b.choice.address)) continue;
      const auto strict = [](const InterfaceFacts& each) { return each.arp_ignore > 0 && each.arp_announce > 1; };
      if (strict(*a.choice.interface) && strict(*b.choice.interface)) continue;
      findings.on_node(*a.node, fmt::format("{} and {} are both in {}", a.choice.interface->name,
                                            b.choice.interface->name, subnet->to_string()));
    }
  }
}

constexpr Rule kInterfaceRules[] = {
    {.id = "interface-missing",
     .severity = Severity::error,
     .title = "no interface fits",
     .meaning = "NCCL fails with 'Bootstrap : no socket interface found', libddp names the interfaces there are.",
     .fix =
         "bring the interface up (ip link set NAME up), or name one that all nodes have; DDP_SOCKET_IFNAME for libddp",
     .check = &check_missing},
    {.id = "interface-local",
     .severity = Severity::error,
     .title = "NCCL would use an interface that reaches only its own host",
     .meaning =
         "A list of exclusions (^docker0) replaces NCCL's own: then loopback and bridges count, the first one first.",
     .fix = "NCCL_SOCKET_IFNAME==NAME with the interface between the nodes",
     .check = &check_local},
    {.id = "interface-unreachable",
     .severity = Severity::error,
     .title = "NCCL would use an interface that other nodes do not reach",
     .meaning = "Its socket transport uses all interfaces that it finds. Connecting to one that leads nowhere fails "
                "after about "
                "a minute, or hangs.",
     .fix = "look at cable, addresses, routes (ip route get ADDRESS) and firewall",
     .check = &check_unreachable},
    {.id = "interface-other",
     .severity = Severity::warning,
     .title = "NCCL would not use the network that libddp chooses",
     .meaning =
         "libddp prefers RDMA networks, then those over which nodes route to each other, then fast ones; NCCL takes "
         "interfaces in the kernel's order.",
     .fix = "name it in NCCL_SOCKET_IFNAME, or start with srun --ddp or ddprun, which do",
     .check = &check_other},
    {.id = "interface-prefix",
     .severity = Severity::warning,
     .title = "NCCL_SOCKET_IFNAME means more interfaces than it names",
     .meaning = "Names are prefixes: eth1 is also eth10, bond0 also bond0.100.",
     .fix = "put '=' before the list",
     .check = &check_prefix},
    {.id = "interfaces-one-subnet",
     .severity = Severity::warning,
     .title = "two interfaces of a node are in one subnet",
     .meaning =
         "Linux answers ARP for both on either, so connections may take the other interface, and fail where only the "
         "named one may be used.",
     .fix = "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, or a subnet for each",
     .check = &check_one_subnet},
};

}  // namespace

std::span<const Rule> interface_rules() { return kInterfaceRules; }

}  // namespace ddp::tools::doctor
