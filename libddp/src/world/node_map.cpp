#include "world/node_map.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::world {
namespace {

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "computing which rank runs on which node",
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = "the launcher's description of the job makes no sense"}};
}

}  // namespace

NodeMap::NodeMap(std::vector<int> node_of) : node_of_(std::move(node_of)) {
  for (int rank = 0; rank < world_size(); ++rank) {
    const int node = node_of_[static_cast<std::size_t>(rank)];
    if (node < 0 || node >= world_size()) fail(fmt::format("rank {} is on node {}", rank, node));
    if (node >= num_nodes()) ranks_.resize(static_cast<std::size_t>(node) + 1);
    auto& ranks = ranks_[static_cast<std::size_t>(node)];
    local_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  for (int node = 0; node < num_nodes(); ++node) {
    if (ranks_[static_cast<std::size_t>(node)].empty()) fail(fmt::format("node {} has no rank", node));
  }
}

NodeMap NodeMap::from_ranks_by_node(const std::vector<std::vector<int>>& ranks_by_node, int world_size) {
  std::vector<int> node_of(static_cast<std::size_t>(world_size), -1);
  int node = 0;
  for (const auto& ranks : ranks_by_node) {
    if (ranks.empty()) continue;  // an allocated node without ranks of this job
    for (const int rank : ranks) {
      if (rank < 0 || rank >= world_size) fail(fmt::format("rank {} in a world of {}", rank, world_size));
      auto& slot = node_of[static_cast<std::size_t>(rank)];
      if (slot != -1) fail(fmt::format("rank {} is on two nodes", rank));
      slot = node;
    }
    ++node;
  }
  const auto missing = std::find(node_of.begin(), node_of.end(), -1);
  if (missing != node_of.end()) fail(fmt::format("rank {} is on no node", missing - node_of.begin()));
  return NodeMap{std::move(node_of)};
}

}  // namespace ddp::world
