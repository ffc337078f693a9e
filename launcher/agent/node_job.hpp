// What an agent knows before the first attempt and keeps for all of them.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"
#include "options/worker_command.hpp"
#include "placement/node_placement.hpp"

namespace ddp::launcher {

/// Why this node cannot take part: the coordinator is told when it wants an attempt.
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
  std::string scratch;                     ///< a private folder that is removed when the job is over
  rlimit descriptor_limit{};               ///< RLIMIT_NOFILE of the workers
  bool hangup_ignored = false;             ///< SIGHUP stays ignored, as nohup(1) asked
  std::optional<NodeRefusal> refusal{};
};

}  // namespace ddp::launcher
