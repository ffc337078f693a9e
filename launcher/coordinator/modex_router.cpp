#include "coordinator/modex_router.hpp"

#include <pmix_common.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "control/connection.hpp"

namespace ddp::launcher {
namespace {

// The data that fits in a message besides the list of ranks.
constexpr std::size_t kMostFenceBytes = control::kMaxMessageBytes - (std::size_t{8} << 20U);

std::vector<int> first_ranks(const std::vector<int>& ranks_per_node) {
  std::vector<int> first{0};
  for (const int count : ranks_per_node) first.push_back(first.back() + count);
  return first;
}

}  // namespace

ModexRouter::ModexRouter(int epoch, std::vector<int> ranks_per_node)
    : epoch_(epoch), first_rank_(first_ranks(ranks_per_node)), absences_(epoch, first_rank_) {}

int ModexRouter::node_of(int rank) const {
  if (rank < 0 || rank >= first_rank_.back()) return -1;
  const auto after = std::upper_bound(first_rank_.begin(), first_rank_.end(), rank);
  return static_cast<int>(std::distance(first_rank_.begin(), after)) - 1;
}

ModexRouter::Outgoing ModexRouter::fence(int from_node, control::Fence contribution) {
  std::set<int> nodes;
  if (contribution.ranks.empty()) {
    for (std::size_t node = 0; node + 1 < first_rank_.size(); ++node) nodes.insert(static_cast<int>(node));
  }
  for (const int rank : contribution.ranks) nodes.insert(node_of(rank));
  if (nodes.contains(-1) || !nodes.contains(from_node)) {
    return {{from_node,
             control::Fence{.epoch = epoch_, .ranks = std::move(contribution.ranks), .status = PMIX_ERR_BAD_PARAM}}};
  }
  auto& waiting = open_[contribution.ranks];
  waiting[from_node].push_back(std::move(contribution.data));
  if (waiting.size() < nodes.size()) return {};

  Bytes all;
  for (auto entry = waiting.begin(); entry != waiting.end();) {
    const Bytes& data = entry->second.front();
    all.insert(all.end(), data.begin(), data.end());
    entry->second.pop_front();  // frees it
    entry = entry->second.empty() ? waiting.erase(entry) : std::next(entry);
  }
  if (waiting.empty()) open_.erase(contribution.ranks);
  int status = PMIX_SUCCESS;
  if (all.size() > kMostFenceBytes) {
    all.clear();
    status = PMIX_ERR_NOMEM;
  }
  // Once for all nodes: with a copy for each, a thousand nodes of 3 MB would take gigabytes.
  const control::Encoded answer = control::encode_once(control::Fence{
      .epoch = epoch_, .ranks = std::move(contribution.ranks), .data = std::move(all), .status = status});
  Outgoing outgoing;
  for (const int node : nodes) outgoing.emplace_back(node, answer);
  return outgoing;
}

ModexRouter::Outgoing ModexRouter::request(int from_node, control::ModexRequest request) {
  const int owner = node_of(request.rank);
  if (owner < 0) {
    return {{from_node, control::ModexReply{
                            .epoch = epoch_, .id = request.id, .to_node = from_node, .status = PMIX_ERR_NOT_FOUND}}};
  }
  request.from_node = from_node;
  return {{owner, std::move(request)}};
}

ModexRouter::Outgoing ModexRouter::reply(control::ModexReply reply) {
  const int node = reply.to_node;
  if (node < 0 || node + 1 >= static_cast<int>(first_rank_.size())) return {};
  return {{node, std::move(reply)}};
}

ModexRouter::Outgoing ModexRouter::find_absent(int from_node, const control::FindAbsent& question,
                                               AbsenceInquiries::Time now) {
  // A node that waits is in the asker's fence or beyond it: fences of the same ranks come one after the other.
  std::set<int> waiting;
  if (const auto open = open_.find({}); open != open_.end()) {
    for (const auto& [node, data] : open->second) waiting.insert(node);
  }
  return absences_.ask(from_node, question, waiting, now);
}

}  // namespace ddp::launcher
