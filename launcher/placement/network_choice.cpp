// Finds a node's interfaces with libddp's own rules, and applies libddp's own agreement to those of all nodes.
#include "placement/network_choice.hpp"

#include <span>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/inventory/network_facts.hpp"

namespace ddp::launcher {

NodeNetwork read_node_network(const base::Environment& environment, const std::vector<std::string>& peer_hosts) {
  topology::CandidateSearch search =
      topology::find_candidates(environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"),
                                peer_hosts, topology::JobSpan::several_nodes);
  return {.candidates = std::move(search.candidates), .reason = std::move(search.reason)};
}

std::vector<InterfaceChoice> choose_interfaces(const std::vector<NodeNetwork>& nodes) {
  std::vector<std::vector<topology::CandidateAddress>> addresses;
  for (const NodeNetwork& node : nodes) {
    if (node.candidates.empty()) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "choosing the network interfaces of the job",
                   .cause = fmt::format("node {} names none", addresses.size()),
                   .native = {},
                   .ranks = {},
                   .hint = {}}};
    }
    auto& own = addresses.emplace_back();
    for (const topology::InterfaceCandidate& candidate : node.candidates) own.push_back(candidate.at);
  }
  const topology::Agreement agreement = topology::agree(addresses);
  std::vector<InterfaceChoice> choices;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto& candidates = nodes[node].candidates;
    const bool has_choice = candidates.size() > 1 && nodes.size() > 1;
    const auto& chosen = candidates[has_choice ? topology::pick(addresses[node], agreement) : 0];
    choices.push_back({.interface = chosen.interface,
                       .address = chosen.at.address.address,
                       .reason = has_choice ? agreement.reason : nodes[node].reason});
  }
  return choices;
}

}  // namespace ddp::launcher
