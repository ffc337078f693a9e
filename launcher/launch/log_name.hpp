// What a job's folders of log files are called, so that they can be told apart, and where they are without --log-dir.
#pragma once

#include <string>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// -r and -t without --log-dir: the files must outlive the job.
bool needs_log_folder(const LogOptions& logs);
/// Makes one of a new name in @p parent. Throws Error(system).
std::string make_log_folder(const std::string& parent);

/// A run id that was given (--rdzv-id); else Slurm's job, with the step that ddprun is in: "1234", "1234.0"; else the
/// run id that all jobs without one have, or the random one of --standalone.
std::string log_name(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
