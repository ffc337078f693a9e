#include "world/node_map.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::world {
namespace {

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "computing which rank runs on which node",
               .cause = std::move(cause),
               .hint = "the launcher's description of the job is inconsistent"}};
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

}  // namespace ddp::world
