// Rules on the interfaces that NCCL and libddp choose, and on the network between them: MTU, addresses, speed, ports.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "doctor/nccl_network.hpp"
#include "doctor/probe.hpp"
#include "doctor/rule.hpp"
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

/// "NCCL_SOCKET_IFNAME==eth0": libddp's choice on the node, if other nodes reach it; else empty.
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

/// For each node, whether no packets pass between it and any other over the interfaces that NCCL uses.
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
      // Other rules report nodes without an interface of their own.
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
    // With RDMA, only NCCL's bootstrap uses this interface: a slow one is as good, and usual.
    if (std::all_of(use.ranks.begin(), use.ranks.end(),
                    [&](int rank) { return takes_rdma(*use.node, job.ranks[static_cast<std::size_t>(rank)]); }))
      continue;
    if (!reachability(job, *use.node, use.choice.address.address).failed.empty()) continue;  // interface-unreachable
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
    // The name is one interface's whole name and a prefix of another's: eth1 and eth10. "ib" for ib0 and ib1 is
    // intended.
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

namespace {

// A path slower than its interfaces by this factor is in another class, as 100 Mbit/s instead of 1000.
constexpr std::int64_t kPathFactor = 4;
// Each outgoing connection of a host takes one; Linux' default is 28232.
constexpr std::int64_t kFewestPorts = 4096;

/// Interfaces that NCCL or libddp use and other hosts can reach, by subnet, each interface once.
std::map<topology::Subnet, std::vector<UsedInterface>> by_subnet(const JobFacts& job) {
  std::map<topology::Subnet, std::vector<UsedInterface>> subnets;
  if (!job.several_nodes()) return subnets;
  const auto add = [&](const UsedInterface& use) {
    const auto subnet = topology::Subnet::of(use.choice.address);
    if (!subnet || is_local_only(use.choice)) return;
    auto& known = subnets[*subnet];
    const auto same = [&](const UsedInterface& each) { return each.choice.interface == use.choice.interface; };
    if (std::none_of(known.begin(), known.end(), same)) known.push_back(use);
  };
  for (const UsedInterface& use : used_by_nccl(job)) add(use);
  for (const UsedInterface& use : used_by_libddp(job)) add(use);
  return subnets;
}

/// The most common value; the larger one of two equally common.
std::int64_t usual(const std::vector<UsedInterface>& uses, std::int64_t InterfaceFacts::*field) {
  std::map<std::int64_t, int> counts;
  for (const UsedInterface& use : uses) ++counts[use.choice.interface->*field];
  const auto less = [](const auto& a, const auto& b) { return a.second <= b.second; };
  return std::max_element(counts.begin(), counts.end(), less)->first;
}

void check_mtu(const JobFacts& job, Findings& findings) {
  for (const auto& [subnet, uses] : by_subnet(job)) {
    const std::int64_t most = usual(uses, &InterfaceFacts::mtu);
    for (const UsedInterface& use : uses) {
      const InterfaceFacts& interface = *use.choice.interface;
      if (interface.mtu == most || interface.mtu == 0) continue;
      findings.on_node(
          *use.node,
          fmt::format("{} has MTU {}, others in {} have {}", interface.name, interface.mtu, subnet.to_string(), most),
          fmt::format("ip link set {} mtu {}", interface.name, most));
    }
  }
}

/// Reports what probes of the interfaces that ranks use found, at the node at fault.
/// @param tested @param failed of a ProbeResult. @param say the evidence.
template <class Tested, class Failed, class Say>
void judge_probes(const JobFacts& job, Findings& findings, Tested tested, Failed failed, Say say) {
  std::set<std::string> used;
  for (const auto& [subnet, uses] : by_subnet(job)) {
    for (const UsedInterface& use : uses) used.insert(use.choice.address.address);
  }
  std::vector<NodePair> pairs;
  const auto each_tested = [&](const auto& act) {
    for (const NodeRecord& from : job.nodes) {
      for (const ProbeResult& result : from.probes.results) {
        if (tested(result) && used.contains(result.address)) act(number_of(job, from), result);
      }
    }
  };
  each_tested([&](int from, const ProbeResult& result) {
    pairs.push_back({.from = from, .to = result.to_node, .failed = failed(result)});
  });
  const auto blamed = nodes_at_fault(pairs, job.nodes.size());
  each_tested([&](int from, const ProbeResult& result) {
    const auto to = static_cast<std::size_t>(result.to_node);
    if (!failed(result) || (blamed[static_cast<std::size_t>(from)] && !blamed[to])) return;
    findings.on_node(job.nodes[to], say(result));
  });
}

void check_packets(const JobFacts& job, Findings& findings) {
  judge_probes(
      job, findings, [](const ProbeResult& result) { return result.packet != PacketEnd::untested; },
      [](const ProbeResult& result) { return result.packet == PacketEnd::lost; },
      [](const ProbeResult& result) {
        return fmt::format("packets of {} bytes to {} are lost, small ones are not", result.packet_bytes,
                           result.interface);
      });
}

/// Rounds down to one digit, so that measurements of several nodes become one finding: 94 is 90.
std::int64_t one_digit(std::int64_t mbps) {
  std::int64_t unit = 1;
  while (mbps / unit >= 10) unit *= 10;
  return mbps / unit * unit;
}

void check_path(const JobFacts& job, Findings& findings) {
  judge_probes(
      job, findings, [](const ProbeResult& result) { return result.path_mbps != 0; },
      [](const ProbeResult& result) {
        return result.path_mbps * kPathFactor < std::min(result.rate_mbps, kMostMeasurableMbps);
      },
      [](const ProbeResult& result) {
        return fmt::format("packets to {} come through at some {} Mbit/s, interfaces run at {}", result.interface,
                           one_digit(result.path_mbps), result.rate_mbps);
      });
}

void check_duplicates(const JobFacts& job, Findings& findings) {
  for (const auto& [subnet, uses] : by_subnet(job)) {
    for (const UsedInterface& use : uses) {
      const auto same = [&](const UsedInterface& other) {
        return other.node != use.node && other.choice.address == use.choice.address;
      };
      if (std::none_of(uses.begin(), uses.end(), same)) continue;
      findings.on_node(*use.node, fmt::format("{} has {}, as another node has", use.choice.interface->name,
                                              use.choice.address.address));
    }
  }
}

void check_speed(const JobFacts& job, Findings& findings) {
  for (const auto& [subnet, uses] : by_subnet(job)) {
    std::int64_t fastest = 0;
    for (const UsedInterface& use : uses) fastest = std::max(fastest, use.choice.interface->rate_mbps);
    for (const UsedInterface& use : uses) {
      const InterfaceFacts& interface = *use.choice.interface;
      if (interface.rate_mbps == 0 || interface.rate_mbps * 2 > fastest) continue;
      findings.on_node(*use.node, fmt::format("{} runs at {} Mbit/s, others in {} at {}", interface.name,
                                              interface.rate_mbps, subnet.to_string(), fastest));
    }
  }
}

void check_ports(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const std::int64_t ports = node.facts.port_high - node.facts.port_low + 1;
    if (node.facts.port_high == 0 || ports >= kFewestPorts) continue;
    findings.on_node(node, fmt::format("{} ports, {} to {}", ports, node.facts.port_low, node.facts.port_high));
  }
}

constexpr Rule kNetworkRules[] = {
    {.id = "mtu-differs",
     .severity = Severity::warning,
     .title = "interfaces of one network have different MTUs",
     .meaning =
         "What the larger side sends whole, the smaller one drops: RDMA and UDP fail, and TCP where something between "
         "changes its segment size.",
     .fix = "ip link set NAME mtu N, with one N everywhere, also on the switches",
     .check = &check_mtu},
    {.id = "mtu-lost",
     .severity = Severity::error,
     .title = "large packets get lost",
     .meaning =
         "Both interfaces would take them, but something between drops them silently. Connections are made, then stall "
         "with the first large message.",
     .fix = "raise the MTU of switches and virtual networks between the nodes, or lower that of both interfaces",
     .check = &check_packets},
    {.id = "address-duplicate",
     .severity = Severity::error,
     .title = "two nodes have one address",
     .meaning = "Connections reach one or the other, as ARP decides from time to time.",
     .fix = "give one of them another address",
     .check = &check_duplicates},
    {.id = "speed-differs",
     .severity = Severity::warning,
     .title = "an interface runs slower than those of other nodes",
     .meaning =
         "All ranks wait for the slowest link. Usually a cable, a transceiver or a switch port that negotiated less.",
     .fix = "ethtool NAME on both ends; replace the cable, or leave the node out (srun --exclude)",
     .check = &check_speed},
    {.id = "path-slow",
     .severity = Severity::warning,
     .title = "packets are slower between nodes than their interfaces are",
     .meaning = "Packets that leave together arrive at less than a quarter of the slower interface's speed (of 4 "
                "Gbit/s, if it "
                "is faster), also in the best of several tries: something between is slow, or busy with other traffic.",
     .fix = "look at the speed of switches' ports, and limits of virtual networks; iperf3 between both nodes says more",
     .check = &check_path},
    {.id = "port-range",
     .severity = Severity::warning,
     .title = "few ports for outgoing connections",
     .meaning = "When they are used up, connecting fails with EADDRNOTAVAIL.",
     .fix = "sysctl net.ipv4.ip_local_port_range='32768 60999'",
     .check = &check_ports},
};

}  // namespace

std::span<const Rule> network_rules() { return kNetworkRules; }

}  // namespace ddp::tools::doctor
