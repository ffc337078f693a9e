#include "placement/network_choice.hpp"

#include <span>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/inventory/network_facts.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::launcher {
namespace {

std::vector<NetworkInterface> own_interfaces() {
  std::vector<NetworkInterface> interfaces;
  for (topology::InterfaceFact& fact : topology::read_usable_interfaces())
    interfaces.push_back(std::move(fact.interface));
  return interfaces;
}

}  // namespace

std::vector<control::Interface> interfaces_of(const std::vector<topology::InterfaceCandidate>& candidates) {
  std::vector<control::Interface> interfaces;
  for (const topology::InterfaceCandidate& candidate : candidates) {
    interfaces.push_back({.name = candidate.interface,
                          .address = candidate.at.address.address,
                          .prefix_length = candidate.at.address.prefix_length,
                          .ipv6 = candidate.at.address.ipv6,
                          .fabric = candidate.at.fabric,
                          .routes_to_peers = candidate.at.routes_to_peers,
                          .rate_mbps = candidate.at.rate_mbps});
  }
  return interfaces;
}

NodeNetwork network_of(const std::vector<control::Interface>& interfaces) {
  NodeNetwork network{.reason = "it is the only one that reaches other hosts"};
  for (const control::Interface& each : interfaces) {
    network.candidates.push_back(
        {.interface = each.name,
         .at = {.address = {.address = each.address, .prefix_length = each.prefix_length, .ipv6 = each.ipv6},
                .fabric = each.fabric,
                .routes_to_peers = each.routes_to_peers,
                .rate_mbps = static_cast<std::uint32_t>(each.rate_mbps)}});
  }
  return network;
}

NodeNetwork read_node_network(const base::Environment& environment, const std::vector<std::string>& peer_hosts) {
  topology::CandidateSearch search =
      topology::find_candidates(environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"),
                                peer_hosts, topology::JobSpan::several_nodes);
  return {.candidates = std::move(search.candidates), .reason = std::move(search.reason)};
}

std::vector<topology::SocketInterface> choose_interfaces(const std::vector<NodeNetwork>& nodes) {
  std::vector<std::vector<topology::CandidateAddress>> addresses;
  for (const NodeNetwork& node : nodes) {
    if (node.candidates.empty()) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "choosing the network interfaces of the job",
                   .cause = fmt::format("node {} names none", addresses.size())}};
    }
    auto& own = addresses.emplace_back();
    for (const topology::InterfaceCandidate& candidate : node.candidates) own.push_back(candidate.at);
  }
  const topology::Agreement agreement = topology::agree(addresses);
  std::vector<topology::SocketInterface> choices;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto& candidates = nodes[node].candidates;
    const bool has_choice = candidates.size() > 1 && nodes.size() > 1;
    const auto& chosen = candidates[has_choice ? topology::pick(addresses[node], agreement) : 0];
    choices.push_back({.name = chosen.interface,
                       .address = chosen.at.address.address,
                       .reason = has_choice ? agreement.reason : nodes[node].reason});
  }
  return choices;
}

topology::SocketInterface one_host_interface(const base::Environment& environment) {
  const std::vector<NetworkInterface> interfaces = own_interfaces();
  if (auto named = topology::interfaces_named_by_user(environment, interfaces)) {
    return {.name = named->names.front(), .reason = named->reason};
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.kind == InterfaceKind::loopback && !interface.addresses.empty()) {
      return {.name = interface.name, .reason = "all ranks are on this host"};
    }
  }
  return {};
}

std::string warn_of_local_interface(const base::Environment& environment, const std::string& chosen) {
  return topology::local_interface_warning(environment, own_interfaces(), chosen);
}

}  // namespace ddp::launcher
