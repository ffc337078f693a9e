// A program that starts agents on other hosts (srun, ssh), or an agent on this one, as a child of the frontend.
#pragma once

#include <string>
#include <vector>

#include "base/process.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

struct LauncherCommand {
  std::string path;                ///< file to execute
  std::vector<std::string> words;  ///< argv
  EnvironmentMap environment;
  int standard_input;  ///< descriptors; the caller keeps them
  int standard_error;
};

/// In its own process group, so that Ctrl-C reaches ddprun alone, with no signal blocked; it gets SIGTERM when ddprun
/// dies. Standard output is ddprun's. Throws Error(system) when no process can be made.
base::ChildProcess start_launcher(LauncherCommand command);

/// This ddprun's executable, for agents; "ddprun" where /proc does not say.
std::string own_path();

}  // namespace ddp::launcher
