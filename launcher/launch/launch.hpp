// Runs a job from the command line to the exit status.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// To be called once, from the process's main thread, before there are others.
/// @param arguments the command line without the program's name, for agents on other nodes.
/// Returns ddprun's exit status. Throws Error when the job could not be started; nothing is left then.
int launch(const LaunchOptions& options, const base::Environment& environment,
           const std::vector<std::string>& arguments);

}  // namespace ddp::launcher
