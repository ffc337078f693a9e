// What a job's folders of log files are called, so that they can be told apart.
#pragma once

#include <string>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// A run id that was given (--rdzv-id); else Slurm's job, with the step that ddprun is in: "1234", "1234.0"; else the
/// run id that all jobs without one have, or the random one of --standalone.
std::string log_name(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
