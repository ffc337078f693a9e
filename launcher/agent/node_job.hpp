// What an agent knows before the first attempt, for all attempts.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>

#include "base/env_table.hpp"
#include "events/heartbeat.hpp"
#include "options/launch_options.hpp"
#include "options/worker_command.hpp"
#include "placement/node_placement.hpp"

namespace ddp::launcher {

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

}  // namespace ddp::launcher
