#include "collectives/verdict_agreement.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace ddp::collectives {
namespace {

/// The first rank of each node, then the second of each, so that no node that is lost takes more witnesses with it than
/// it must.
std::vector<int> witness_order(const GroupMembers& members) {
  std::map<int, int> on_node;
  std::vector<std::pair<int, int>> places;  // among the ranks of its node; rank
  for (int rank = 0; rank < members.size(); ++rank) {
    const int node = members.nodes.empty() ? 0 : members.nodes[static_cast<std::size_t>(rank)];
    places.emplace_back(on_node[node]++, rank);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> order;
  order.reserve(places.size());
  for (const auto& [place, rank] : places) order.push_back(rank);
  return order;
}

}  // namespace

ProposalAnswer VerdictRecord::propose(const Error& error) {
  if (verdict_) return {.decided = true, .error = *verdict_};
  if (!proposed_) proposed_ = error;
  return {.decided = false, .error = *proposed_};
}

const Error& VerdictRecord::decide(const Error& error) {
  if (!verdict_) verdict_ = error;
  return *verdict_;
}

Agreement::Agreement(const GroupMembers& members, Error proposal, const std::vector<int>& absent)
    : verdict_(std::move(proposal)), order_(witness_order(members)) {
  std::erase_if(order_, [&](int rank) { return std::find(absent.begin(), absent.end(), rank) != absent.end(); });
}

std::optional<int> Agreement::next() const {
  if (passed_ >= kWitnesses || place_ >= order_.size()) return std::nullopt;
  return order_[place_];
}

void Agreement::pass(const ProposalAnswer& answer) {
  verdict_ = answer.error;
  ++place_;
  passed_ = answer.decided ? kWitnesses : passed_ + 1;
}

}  // namespace ddp::collectives
