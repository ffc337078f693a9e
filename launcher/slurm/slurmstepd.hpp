// slurmstepd, Slurm's process above the tasks of a step, above a batch script and above salloc's interactive shell.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/env_table.hpp"

namespace ddp::launcher {

/// False also where this process cannot see it (another process namespace, hidepid).
bool is_slurmstepd(pid_t pid);

/// The step to which this process belongs, from the title of the slurmstepd above it: "1234.0", "1234.batch",
/// "1234.interactive". Empty where none is visible.
std::string step_above();

/// @p environment without the description of a step (SLURM_STEP_*) to which this process does not belong: sbatch and
/// salloc pass on what they find in a task that calls them, and Slurm does not replace it. @p above: of
/// step_above(). Components of heterogeneous jobs are left alone: their steps go by the first one's job.
base::Environment without_foreign_step(const base::Environment& environment, std::string_view above);

}  // namespace ddp::launcher
