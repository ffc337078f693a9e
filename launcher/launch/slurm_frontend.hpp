// Starts an agent on each node of an allocation with srun.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "launch/rendezvous.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// The standard input of a step of agents.
struct StepInput {
  std::string tasks;      ///< srun's --input: "none" or "all"
  base::UniqueFd stream;  ///< what srun reads; nothing: ddprun's own
};

/// srun reads what all ranks get, except from terminals, which are read for it: its process group is in the background.
/// Rank 0's input comes by JobInput.
StepInput step_input(StandardInput wanted);

/// srun's command line for one agent on each node: no MPI, and losing a node or an agent does not end the step, because
/// ddprun decides that. @param components the number of nodes in each component of the allocation; several are a
/// heterogeneous one's. @param order of the nodes, where the user wants one: the first of them are taken
std::vector<std::string> agent_step_command(const std::vector<int>& components, const std::string& ddprun,
                                            const std::vector<std::string>& arguments, const std::string& input_tasks,
                                            const std::vector<std::string>& order = {});

/// Gives an agent all processors of its cgroup, where Slurm has bound it as a task with one. (srun's --cpu-bind=none
/// would, but complains on clusters without a binding plugin, even with --quiet.)
void leave_task_binding();

/// Its environment: with kAgentVariable, and without the variables that would give the step's tasks less than their
/// node (the batch job's number of tasks, processors and GPUs per task).
std::map<std::string, std::string, std::less<>> agent_step_environment(const base::Environment& environment,
                                                                       const RendezvousPoint& point);

/// A running srun in its own process group, so that Ctrl-C reaches ddprun alone. When ddprun dies, srun gets SIGTERM
/// and ends the step. Destruction ends it: SIGTERM, then SIGKILL.
class SrunProcess {
 public:
  /// @param standard_input what it reads. Throws ExitError when there is no srun, Error(system) when no process can be
  /// made.
  SrunProcess(const std::vector<std::string>& command,
              const std::map<std::string, std::string, std::less<>>& environment, int standard_input);
  ~SrunProcess();

  int pidfd() { return process_.pidfd(); }  ///< readable once it has ended
  /// As a shell reports it; nothing while it runs.
  std::optional<int> exit_status();
  /// SIGTERM, so that it ends the step; SIGKILL at @p deadline.
  void end(Deadline deadline) { process_.terminate(deadline); }

 private:
  base::ChildProcess process_;
};

}  // namespace ddp::launcher
