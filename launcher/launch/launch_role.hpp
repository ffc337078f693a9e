// Decides what this ddprun is: the only one, one of several, or the one that starts the agents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

enum class LaunchRole {
  alone,           ///< all ranks on this host
  frontend,        ///< starts an agent on each node, with srun in a Slurm allocation or by a host list, and leads them
  frontend_agent,  ///< started by a frontend
  step_agent,      ///< a task of a Slurm step with one task on each node; they meet through PMI
  endpoint,        ///< one of several, started by hand, that meet at a host and port
};

struct RoleDecision {
  LaunchRole role = LaunchRole::alone;
  std::string reason{};  ///< one sentence
  NodeRange nodes;       ///< how many agents the job has
  /// Of a frontend: how many of them are on nodes of each component of the allocation, of which only heterogeneous
  /// ones have several.
  std::vector<int> components = {};
  bool by_hosts = false;  ///< of a frontend and its agents: by a host list
};

/// The variable that tells agents where their frontend is.
inline constexpr const char* kAgentVariable = "DDPRUN_AGENT";

/// From the options and the environment alone. A host list wins over all else. Options that name a rendezvous win over
/// an allocation; within a step, its PMI wins over them where it describes the same nodes. A worker of another launcher
/// (TORCHELASTIC_RUN_ID) starts jobs on its host only. Throws ExitError(kExitUsage) where Slurm and the options
/// disagree, for steps with several tasks on a node, and for those that have no PMI.
RoleDecision decide_role(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
