#include "doctor/nccl_interfaces.hpp"

#include <algorithm>
#include <string_view>

#include "doctor/nccl_rdma.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::size_t kMostInterfaces = 16;  // MAX_IFS, include/socket.h

std::string_view value_of(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string_view{} : std::string_view{found->second};
}

bool is_ipv6_link_local(const InterfaceAddress& address) {
  return address.ipv6 && (address.address.starts_with("fe8") || address.address.starts_with("fe9") ||
                          address.address.starts_with("fea") || address.address.starts_with("feb"));
}

/// The kernel lists all IPv4 addresses before all IPv6 ones, and NCCL takes the first that an interface has.
std::vector<SocketChoice> in_kernel_order(const std::vector<InterfaceFacts>& interfaces, std::string_view family) {
  std::vector<SocketChoice> found;
  for (const bool ipv6 : {false, true}) {
    if (family == (ipv6 ? "AF_INET" : "AF_INET6")) continue;
    for (const InterfaceFacts& interface : interfaces) {
      if (!interface.running || (ipv6 && interface.kind == InterfaceKind::loopback)) continue;
      const auto known = [&](const SocketChoice& choice) { return choice.interface == &interface; };
      if (std::any_of(found.begin(), found.end(), known)) continue;
      const auto address = std::find_if(interface.addresses.begin(), interface.addresses.end(),
                                        [&](const InterfaceAddress& each) { return each.ipv6 == ipv6; });
      if (address != interface.addresses.end()) found.push_back({.interface = &interface, .address = *address});
    }
  }
  return found;
}

template <class Wanted>
std::vector<SocketChoice> those(const std::vector<SocketChoice>& all, Wanted wanted) {
  std::vector<SocketChoice> left;
  for (const SocketChoice& choice : all) {
    if (left.size() < kMostInterfaces && wanted(std::string_view{choice.interface->name})) left.push_back(choice);
  }
  return left;
}

void add_use(std::vector<UsedInterface>& uses, const NodeRecord& node, const SocketChoice& choice, int rank,
             bool for_bootstrap) {
  auto known = std::find_if(uses.begin(), uses.end(), [&](const UsedInterface& use) {
    return use.node == &node && use.choice.interface == choice.interface && use.choice.address == choice.address;
  });
  if (known == uses.end()) {
    uses.push_back({.node = &node, .choice = choice, .for_bootstrap = false});
    known = std::prev(uses.end());
  }
  known->ranks.push_back(rank);
  known->for_bootstrap = known->for_bootstrap || for_bootstrap;
}

}  // namespace

std::vector<SocketChoice> predict_socket_interfaces(const std::vector<InterfaceFacts>& interfaces,
                                                    const Variables& variables) {
  const auto all = in_kernel_order(interfaces, value_of(variables, "NCCL_SOCKET_FAMILY"));
  if (const auto list = value_of(variables, "NCCL_SOCKET_IFNAME"); list.size() > 1) {
    return those(all, [list](std::string_view name) { return topology::names_interface(list, name); });
  }
  if (auto ib = those(all, [](std::string_view name) { return name.starts_with("ib"); }); !ib.empty()) return ib;
  auto others = those(all, [](std::string_view name) {
    return !name.starts_with("docker") && !name.starts_with("lo") && !name.starts_with("virbr");
  });
  for (const std::string_view last : {"docker", "lo", "virbr"}) {
    if (others.empty()) others = those(all, [last](std::string_view name) { return name.starts_with(last); });
  }
  return others;
}

std::vector<UsedInterface> used_by_nccl(const JobFacts& job) {
  std::vector<UsedInterface> uses;
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const auto choices = predict_socket_interfaces(node.facts.interfaces, rank.environment);
    const bool rdma = takes_rdma(node, rank);
    for (std::size_t i = 0; i < choices.size() && !(rdma && i > 0); ++i) {  // over RDMA, only bootstrap needs one
      add_use(uses, node, choices[i], rank.rank, i == 0);
    }
  }
  return uses;
}

std::vector<UsedInterface> used_by_libddp(const JobFacts& job) {
  std::vector<std::vector<topology::CandidateAddress>> candidates;
  for (const NodeRecord& node : job.nodes) {
    if (node.facts.candidate_facts.empty()) return {};
    candidates.push_back(node.facts.candidate_facts);
  }
  const auto agreement = topology::agree(candidates);
  std::vector<UsedInterface> uses;
  for (const NodeRecord& node : job.nodes) {
    const std::size_t picked = topology::pick(node.facts.candidate_facts, agreement);
    const auto interface =
        std::find_if(node.facts.interfaces.begin(), node.facts.interfaces.end(),
                     [&](const InterfaceFacts& each) { return each.name == node.facts.candidates[picked]; });
    if (interface == node.facts.interfaces.end()) continue;
    const SocketChoice choice{.interface = &*interface, .address = node.facts.candidate_facts[picked].address};
    for (const int rank : node.ranks) add_use(uses, node, choice, rank, true);
  }
  return uses;
}

bool is_local_only(const SocketChoice& choice) {
  const InterfaceKind kind = choice.interface->kind;
  return kind == InterfaceKind::loopback || kind == InterfaceKind::host_only || is_ipv6_link_local(choice.address) ||
         choice.address.address.starts_with("169.254.");
}

std::vector<bool> nodes_at_fault(const std::vector<NodePair>& pairs, std::size_t num_nodes) {
  std::vector<int> tried(num_nodes);
  std::vector<int> failed(num_nodes);
  for (const NodePair& pair : pairs) {
    for (const int node : {pair.from, pair.to}) {
      ++tried[static_cast<std::size_t>(node)];
      failed[static_cast<std::size_t>(node)] += pair.failed ? 1 : 0;
    }
  }
  std::vector<bool> at_fault(num_nodes);
  for (std::size_t node = 0; node < num_nodes; ++node) {
    at_fault[node] = tried[node] > 0 && failed[node] == tried[node];
  }
  return at_fault;
}

int number_of(const JobFacts& job, const NodeRecord& node) { return static_cast<int>(&node - job.nodes.data()); }

Reachability reachability(const JobFacts& job, const NodeRecord& node, const std::string& address) {
  Reachability seen;
  for (const NodeRecord& other : job.nodes) {
    for (const ProbeResult& result : other.probes.results) {
      if (result.to_node != number_of(job, node) || result.address != address) continue;
      seen.tried.push_back(&other);
      if (result.end == ProbeEnd::reached) continue;
      seen.failed.push_back(&other);
      seen.worst = std::max(seen.worst, result.end);
    }
  }
  return seen;
}

}  // namespace ddp::tools::doctor
