// A job of two nodes with two ranks each in which nothing is wrong.
#pragma once

#include "doctor/rule.hpp"

namespace ddp::tools::doctor::test {

inline InterfaceFacts interface_of(const std::string& name, const std::string& address) {
  return {.name = name,
          .kind = InterfaceKind::other,
          .running = true,
          .mtu = 1500,
          .rate_mbps = 100'000,
          .arp_ignore = 0,
          .arp_announce = 0,
          .addresses = {{.address = address, .prefix_length = 24, .ipv6 = false}}};
}

inline topology::CandidateAddress candidate(const std::string& address) {
  return {.address = {.address = address, .prefix_length = 24, .ipv6 = false},
          .fabric = false,
          .routes_to_peers = true,
          .rate_mbps = 100'000};
}

inline InterfaceFacts loopback() {
  InterfaceFacts lo = interface_of("lo", "127.0.0.1");
  lo.kind = InterfaceKind::loopback;
  lo.mtu = 65536;
  return lo;
}

inline ProbeResult reached(int to_node, const std::string& interface, const std::string& address) {
  return {.to_node = to_node,
          .interface = interface,
          .address = address,
          .end = ProbeEnd::reached,
          .packet = PacketEnd::passed,
          .packet_bytes = 1500,
          .rate_mbps = 100'000,
          .path_mbps = 4000};
}

inline JobFacts healthy_job() {
  JobFacts job;
  for (int number = 0; number < 2; ++number) {
    const std::string host = "n" + std::to_string(number);
    const std::string address = "10.1.0." + std::to_string(number + 1);
    NodeRecord node{.host = host, .ranks = {2 * number, 2 * number + 1}};
    node.facts.boot_id = "boot" + std::to_string(number);
    node.facts.kernel = "6.1.0";
    node.facts.own_name.addresses = {address};
    node.facts.shm_bytes = node.facts.shm_free_bytes = std::int64_t{1} << 34;
    node.facts.interfaces = {loopback(), interface_of("eth0", address)};
    node.facts.candidates = {"eth0"};
    node.facts.candidate_facts = {candidate(address)};
    node.facts.port_low = 32768;
    node.facts.port_high = 60999;
    node.probes.clock_ms = 1'700'000'000'000 + 40 * number;
    node.probes.results = {reached(1 - number, "eth0", "10.1.0." + std::to_string(2 - number))};
    job.nodes.push_back(node);
    for (int local = 0; local < 2; ++local) {
      RankFacts rank;
      rank.rank = 2 * number + local;
      rank.local_rank = local;
      rank.node = number;
      rank.host = host;
      rank.version = "0.1.0";
      rank.pmix_version = "4.2.2";
      rank.cpus = CpuSet::parse(local == 0 ? "0-7" : "8-15");
      rank.cores = 8;
      rank.namespaces = {{"net", "net:[1]"}, {"ipc", "ipc:[1]"}, {"pid", "pid:[1]"}, {"mnt", "mnt:[1]"}};
      rank.shm_device = 25;
      job.ranks.push_back(rank);
    }
  }
  return job;
}

inline std::vector<Finding> findings_of(const JobFacts& job) {
  return examine(job, [](const Rule&) { return true; });
}

inline std::set<std::string> rules_found(const JobFacts& job) {
  std::set<std::string> ids;
  for (const Finding& finding : findings_of(job)) ids.emplace(finding.rule->id);
  return ids;
}

}  // namespace ddp::tools::doctor::test
