// Ranks from nodes: torchrun's rules for RANK, ROLE_RANK and their sizes.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>
#include <vector>

#include "agent/node_metrics.hpp"
#include "base/env_table.hpp"
#include "control/messages.hpp"
#include "events/heartbeat.hpp"
#include "options/launch_options.hpp"
#include "options/worker_command.hpp"
#include "placement/node_placement.hpp"

namespace ddp::launcher {

// What an agent knows before the first attempt, for all attempts.

/// Why this node cannot take part; reported when the coordinator prepares an attempt.
struct NodeRefusal {
  std::string message;
  int exit_status;
};

struct NodeJob {
  LaunchOptions options;
  base::Environment environment{{}};  ///< what workers inherit
  std::string host;
  WorkerCommand command;
  std::optional<NodePlacement> placement;  ///< not set only where there is a refusal
  std::string scratch;                     ///< private folder, removed after the job
  std::string memory{};                    ///< likewise in memory, for the ranks of all attempts; empty: none
  rlimit descriptor_limit{};               ///< RLIMIT_NOFILE of the workers
  PeerLimits peers;
  bool hangup_ignored = false;  ///< SIGHUP stays ignored, as nohup(1) asked
  std::optional<NodeRefusal> refusal{};
};

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
