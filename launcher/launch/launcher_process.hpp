// A program that starts agents on other hosts (srun, ssh), or an agent on this one, as a child of the frontend.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "coordinator/coordinator.hpp"
#include "stream/event_loop.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

struct LauncherCommand {
  std::string path;                ///< file to execute
  std::vector<std::string> words;  ///< argv
  EnvironmentMap environment;
  int standard_input;  ///< descriptors; the caller keeps them
  int standard_error;
  bool keeps_error = false;  ///< descriptor 3 is ddprun's standard error
};

/// In its own process group, so that Ctrl-C reaches ddprun alone, with no signal blocked; it gets SIGTERM when ddprun
/// dies. Standard output is ddprun's. Throws Error(system) when no process can be made.
base::ChildProcess start_launcher(LauncherCommand command);

/// This ddprun's executable, for agents; "ddprun" where /proc does not say.
std::string own_path();

// How a frontend waits for srun or ssh after its job.

struct RunningLaunchers {
  std::string name;  ///< "srun"
  std::function<bool()> ended;
  std::function<void(Deadline)> end;  ///< SIGTERM, SIGKILL at the deadline
};

/// Standard output and standard error, which are the launchers', too, take more.
bool readers_keep_up();

/// They may still hold output of agents for a slow reader; signals shorten the wait. Else they wait for nodes or for
/// Slurm: where a signal, --timeout or a failure ends the job, no longer than any other part of the end.
void end_launchers(stream::EventLoop& loop, Coordinator& coordinator, const RunningLaunchers& launchers);

}  // namespace ddp::launcher
