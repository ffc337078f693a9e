// `ddp-info env`: asks this process, another one or the ranks of the job, and prints.
#pragma once

#include "env/options.hpp"

namespace ddp::tools::env {

/// In a job, ranks other than 0 print nothing. Throws Error.
void run_env(const EnvOptions& options);

}  // namespace ddp::tools::env
