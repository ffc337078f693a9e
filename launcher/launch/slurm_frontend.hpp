// Starts an agent on each node of an allocation with srun.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/unique_fd.hpp"
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
  SrunProcess(const SrunProcess&) = delete;
  SrunProcess& operator=(const SrunProcess&) = delete;
  ~SrunProcess();

  int pidfd() const { return pidfd_.get(); }  ///< readable once it has ended
  /// As a shell says it; -1 while it runs.
  int exit_status();
  bool wait(Deadline deadline);

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  int exit_status_ = -1;
};

}  // namespace ddp::launcher
