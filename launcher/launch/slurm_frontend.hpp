// Starts an agent on each node of an allocation with srun.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/child_process.hpp"
#include "base/env_table.hpp"
#include "launch/rendezvous.hpp"

namespace ddp::launcher {

/// srun's command line for one agent on each of @p num_nodes nodes: no MPI, and neither a lost node nor a lost agent
/// ends the step, because ddprun decides about that.
std::vector<std::string> agent_step_command(int num_nodes, const std::string& ddprun,
                                            const std::vector<std::string>& arguments);

/// Gives an agent of such a step all processors of its cgroup again, where Slurm has bound it as a task that wants one.
/// (srun's --cpu-bind=none does the same, but complains on clusters without a plugin for binding, quiet or not.)
void leave_task_binding();

/// The environment for it: without the variables that would give the step's tasks less than their node (how many tasks
/// the batch job wanted, processors and GPUs per task), and with kAgentVariable.
std::map<std::string, std::string, std::less<>> agent_step_environment(const base::Environment& environment,
                                                                       const RendezvousPoint& point);

/// A running srun, in a process group of its own, so that Ctrl-C on the terminal comes to ddprun alone. It gets SIGTERM
/// when ddprun dies, and then ends the step. Destruction ends it: SIGTERM, then SIGKILL.
class SrunProcess {
 public:
  /// Throws ExitError when there is no srun, Error(system) when no process can be made.
  SrunProcess(const std::vector<std::string>& command,
              const std::map<std::string, std::string, std::less<>>& environment);
  ~SrunProcess();

  int pidfd() { return process_.pidfd(); }  ///< readable once it has ended
  /// As a shell reports it; nothing while it runs.
  std::optional<int> exit_status();

 private:
  base::ChildProcess process_;
};

}  // namespace ddp::launcher
