// Rules on what lies between the interfaces that ranks use: MTU, addresses, speed, ports.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/families.hpp"
#include "doctor/nccl_interfaces.hpp"
#include "doctor/packet_train.hpp"
#include "topology/network/interface_agreement.hpp"

namespace ddp::tools::doctor {
namespace {

// Slower by this than the interfaces: another class, as 100 Mbit/s instead of 1000.
constexpr std::int64_t kPathFactor = 4;
// Each connection that a host opens takes one; 28232 is Linux' default.
constexpr std::int64_t kFewestPorts = 4096;

/// What NCCL or libddp use and other hosts can reach, by subnet, each interface once.
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

/// The value that most interfaces have, the larger one of two.
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

/// What probes of the interfaces that ranks use have found: says so of the node that is to blame.
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

/// To one digit, so that what several nodes have measured is one finding: 94 is 90.
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
         "Both interfaces would take them, something between does not and does not say so. Connections are made, then "
         "stand still with the first large message.",
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
