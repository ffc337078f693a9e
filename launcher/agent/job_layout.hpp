// Ranks from nodes: torchrun's rules for RANK, ROLE_RANK and their sizes.
#pragma once

#include <vector>

#include "agent/node_job.hpp"
#include "agent/node_metrics.hpp"
#include "control/messages.hpp"

namespace ddp::launcher {

/// The ranks of one node within the job. Ranks of a node are consecutive, in the order of the nodes, whose numbers of
/// ranks may differ; role ranks count in the same order among the nodes of one role.
struct NodeRanks {
  int first_rank = 0;
  int num_ranks = 0;
  int world_size = 0;
  int first_role_rank = 0;
  int role_world_size = 0;
};

/// @param node_rank an index of @p nodes.
NodeRanks ranks_of_node(const std::vector<control::NodeLayout>& nodes, int node_rank);

/// What NodeMetrics shows of this node, and of an attempt on it.
NodeMetrics::Node metrics_of(const NodeJob& job);
NodeMetrics::Ranks metrics_of(const control::PrepareAttempt& plan);

}  // namespace ddp::launcher
