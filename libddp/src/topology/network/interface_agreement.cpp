#include "topology/network/interface_agreement.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace ddp::topology {
namespace {

/// What a subnet offers to the job.
struct Coverage {
  std::size_t nodes = 0;
  std::size_t routing_nodes = 0;
  bool fabric = true;
  bool addresses_differ = true;
  std::uint32_t slowest_mbps = std::numeric_limits<std::uint32_t>::max();
  std::set<std::string> addresses;

  auto merit() const { return std::tuple(fabric, routing_nodes, slowest_mbps); }
};

void add(Coverage& coverage, const CandidateAddress& candidate) {
  ++coverage.nodes;
  if (candidate.routes_to_peers) ++coverage.routing_nodes;
  coverage.fabric = coverage.fabric && candidate.fabric;
  coverage.slowest_mbps = std::min(coverage.slowest_mbps, candidate.rate_mbps);
  if (!coverage.addresses.insert(candidate.address.address).second) coverage.addresses_differ = false;
}

std::map<Subnet, Coverage> survey(const std::vector<std::vector<CandidateAddress>>& nodes) {
  std::map<Subnet, Coverage> found;
  for (const auto& candidates : nodes) {
    std::set<Subnet> seen;  // two addresses of a node in one subnet count once
    for (const CandidateAddress& candidate : candidates) {
      const auto subnet = Subnet::of(candidate.address);
      if (subnet && seen.insert(*subnet).second) add(found[*subnet], candidate);
    }
  }
  return found;
}

}  // namespace

std::optional<Subnet> Subnet::of(const InterfaceAddress& address) {
  Subnet subnet{.ipv6 = address.ipv6, .prefix_length = address.prefix_length};
  if (::inet_pton(address.ipv6 ? AF_INET6 : AF_INET, address.address.c_str(), subnet.network.data()) != 1) {
    return std::nullopt;
  }
  subnet.prefix_length = std::clamp(subnet.prefix_length, 0, address.ipv6 ? 128 : 32);
  for (std::size_t i = 0; i < subnet.network.size(); ++i) {
    const int kept_bits = std::clamp(subnet.prefix_length - static_cast<int>(i) * 8, 0, 8);
    subnet.network[i] &= static_cast<std::uint8_t>(0xff00U >> static_cast<unsigned>(kept_bits));
  }
  return subnet;
}

std::string Subnet::to_string() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(ipv6 ? AF_INET6 : AF_INET, network.data(), text.data(), text.size());
  return fmt::format("{}/{}", text.data(), prefix_length);
}

Agreement agree(const std::vector<std::vector<CandidateAddress>>& nodes) {
  const auto found = survey(nodes);
  const bool all_route = std::all_of(nodes.begin(), nodes.end(), [](const auto& candidates) {
    return std::any_of(candidates.begin(), candidates.end(), [](const auto& each) { return each.routes_to_peers; });
  });
  const std::pair<const Subnet, Coverage>* best = nullptr;
  for (const auto& entry : found) {
    const Coverage& coverage = entry.second;
    if (coverage.nodes != nodes.size() || !coverage.addresses_differ) continue;
    // Nodes in different subnets with routers between them: what they have in common besides may lead nowhere.
    if (all_route && coverage.routing_nodes == 0 && !coverage.fabric) continue;
    if (best == nullptr || coverage.merit() > best->second.merit()) best = &entry;
  }
  Agreement agreement;
  for (const auto& entry : found) {
    if (&entry == best) continue;
    const Coverage& coverage = entry.second;
    const std::string name = entry.first.to_string();
    if (coverage.nodes != nodes.size()) {
      agreement.alternatives.push_back(fmt::format("{}: only on {} of {} nodes", name, coverage.nodes, nodes.size()));
    } else if (!coverage.addresses_differ) {
      agreement.alternatives.push_back(fmt::format("{}: nodes have the same address in it", name));
    } else if (best == nullptr) {
      agreement.alternatives.push_back(fmt::format("{}: does not route to the peers on any node", name));
    } else if (coverage.fabric != best->second.fabric) {
      agreement.alternatives.push_back(fmt::format("{}: not an RDMA network", name));
    } else if (coverage.routing_nodes != best->second.routing_nodes) {
      agreement.alternatives.push_back(
          fmt::format("{}: routes to the peers on {} of {} nodes", name, coverage.routing_nodes, nodes.size()));
    } else {
      agreement.alternatives.push_back(fmt::format("{}: not faster", name));
    }
  }
  if (best == nullptr) {
    agreement.reason =
        fmt::format("no subnet is on all {} nodes, so each node uses what routes to the others", nodes.size());
    return agreement;
  }
  agreement.subnet = best->first;
  agreement.reason = fmt::format("its subnet {} is on all {} nodes{}", best->first.to_string(), nodes.size(),
                                 best->second.fabric              ? " and made for clusters (RDMA)"
                                 : best->second.routing_nodes > 0 ? " and routes to them"
                                                                  : "");
  return agreement;
}

std::size_t pick(std::span<const CandidateAddress> candidates, const Agreement& agreement) {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (agreement.subnet && Subnet::of(candidates[i].address) == agreement.subnet) return i;
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].routes_to_peers) return i;
  }
  return 0;
}

}  // namespace ddp::topology
