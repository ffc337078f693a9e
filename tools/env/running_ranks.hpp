// The ranks of a job that runs on this node, by what /proc shows of this user's processes: for programs of any kind,
// while they run.
#pragma once

#include <string>

#include <ddp/diagnostics.hpp>

namespace ddp::tools::env {

/// @param job Slurm's number, "4711", or that of a step, "4711.0". The first process of each rank counts, with what it
/// was started with. Throws Error(not_found) where there is none, and Error(invalid_argument).
EnvironmentReport report_of_running_job(const std::string& job);

}  // namespace ddp::tools::env
