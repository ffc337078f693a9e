// srun's exit status: Slurm takes the highest of all tasks, which after a failure is that of tasks that Slurm has ended
// (143 for SIGTERM). No hook of SPANK can change it; the C library's on_exit(3) can.
#pragma once

namespace ddp::srun_plugin::exit_status {

/// From now on this process' exit status is known when it exits. Not in its children.
void watch();

/// If this process exits with another status than 0, now or later, the status becomes @p status, unless that is 0.
/// Where it is exiting already, does not return.
void prefer(int status);

}  // namespace ddp::srun_plugin::exit_status
