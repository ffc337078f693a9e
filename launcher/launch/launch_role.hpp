// What this ddprun is: frontend, agent, alone or inside a step, and what its job is called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "base/launch_engine.hpp"
#include "coordinator/coordinator.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

// Decides what this ddprun is: the only one, one of several, or the one that starts the agents.

enum class LaunchRole {
  alone,           ///< all ranks on this host
  frontend,        ///< starts an agent on each node, with srun in a Slurm allocation or by a host list, and leads them
  frontend_agent,  ///< started by a frontend
  step_agent,      ///< a task of Slurm or another engine, one on each node; they meet through PMI
  endpoint,        ///< one of several, started by hand, that meet at a host and port
};

struct RoleDecision {
  LaunchRole role = LaunchRole::alone;
  std::string reason{};  ///< one sentence
  NodeRange nodes;       ///< on how many the job's ranks run
  int spares = 0;        ///< and how many agents it has besides
  int absent = 0;        ///< of all these, how many other allocations may bring (--join)
  bool expands = false;  ///< requests such allocations itself

  int agents() const { return nodes.max + spares - absent; }
  /// Nodes may come and go.
  bool elastic() const { return nodes.min < nodes.max || spares > 0 || expands; }
  /// An allocation's ddprun leads, and those of other allocations may join.
  bool joinable() const { return role == LaunchRole::frontend && !by_hosts && elastic(); }
  /// Of a frontend: how many of them are on nodes of each component of the allocation, of which only heterogeneous
  /// ones have several.
  std::vector<int> components = {};
  bool by_hosts = false;   ///< of a frontend and its agents: by a host list
  std::int64_t task = -1;  ///< of a step_agent: its rank among them
  std::string engine{};    ///< of a step_agent: who started it; empty: Slurm
};

/// The variable that tells agents where their frontend is.
inline constexpr const char* kAgentVariable = "DDPRUN_AGENT";

/// From the options and the environment alone. A host list wins over all else. Options that name a rendezvous win over
/// an allocation; within a step, its PMI wins over them where it describes the same nodes. A worker of another launcher
/// (TORCHELASTIC_RUN_ID) starts jobs on its host only. Throws ExitError(kExitUsage) where Slurm and the options
/// disagree, for steps with several tasks on a node, and for those that have no PMI.
/// @param task of another engine than Slurm, with the number of tasks
RoleDecision decide_role(const LaunchOptions& options, const base::Environment& environment,
                         const std::optional<base::EngineTask>& task);

/// The number of nodes of each component of the allocation. Throws ExitError(kExitUsage) where a component's is
/// missing.
std::vector<int> allocated_nodes(const base::Environment& environment);

// ddprun as a task of `srun --ddp`, which has prepared it as if it were a rank.

/// Undoes what `srun --ddp` set for this process: torchrun's variables, settings, cores and memory policy; nothing
/// elsewhere. Call it before anything reads the environment, and with a single thread.
void leave_surrounding_step() noexcept;

// What the coordinator of a job is told: the user's options and this process's role.

/// Without CoordinatorOptions::peers.
CoordinatorOptions coordinator_options(const LaunchOptions& options, const RoleDecision& role,
                                       const base::Environment& environment);

// What a job's folders of log files are called, so that they can be told apart, and where they are without --log-dir.

/// -r and -t without --log-dir: the files must outlive the job.
bool needs_log_folder(const LogOptions& logs);
/// Makes one of a new name in @p parent. Throws Error(system).
std::string make_log_folder(const std::string& parent);

/// A run id that was given (--rdzv-id); else Slurm's job, with the step that ddprun is in: "1234", "1234.0"; else the
/// run id that all jobs without one have, or the random one of --standalone.
std::string log_name(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
