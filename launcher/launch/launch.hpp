// Runs a job from the command line to the exit status.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// Call it once, from the main thread, before there are others.
/// @param arguments the command line without the program's name, for agents on other nodes.
/// @return ddprun's exit status. Throws Error when the job could not be started; it leaves nothing then.
int launch(LaunchOptions options, base::Environment environment, const std::vector<std::string>& arguments);

}  // namespace ddp::launcher
