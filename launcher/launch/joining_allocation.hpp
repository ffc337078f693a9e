// ddprun --join JOBID: brings the nodes of its own Slurm allocation into a job that another ddprun leads.
#pragma once

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// Starts an agent on each node of this allocation, with the program, options and environment of the job, and waits for
/// their end. SIGTERM and SIGINT let the nodes leave. Throws ExitError(kExitUsage) outside an allocation and in a
/// step's task, Error where there is no such job, or it does not answer.
/// @return srun's exit status; 1 if the job does not take them
int join_job(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
