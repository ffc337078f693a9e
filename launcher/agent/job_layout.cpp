#include "agent/job_layout.hpp"

namespace ddp::launcher {

NodeRanks ranks_of_node(const std::vector<control::NodeLayout>& nodes, int node_rank) {
  const control::NodeLayout& own = nodes.at(static_cast<std::size_t>(node_rank));
  NodeRanks ranks{.num_ranks = own.nproc};
  for (int index = 0; index < static_cast<int>(nodes.size()); ++index) {
    const control::NodeLayout& node = nodes[static_cast<std::size_t>(index)];
    ranks.world_size += node.nproc;
    if (index < node_rank) ranks.first_rank += node.nproc;
    if (node.role != own.role) continue;
    ranks.role_world_size += node.nproc;
    if (index < node_rank) ranks.first_role_rank += node.nproc;
  }
  return ranks;
}

}  // namespace ddp::launcher
