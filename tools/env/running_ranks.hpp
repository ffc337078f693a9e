// The ranks of a running job, by what /proc of its nodes shows of this user's processes: for programs of any kind.
#pragma once

#include <string>

#include <ddp/diagnostics.hpp>

namespace ddp::tools::env {

/// @param job Slurm's number, "4711", or that of a step, "4711.0". The first process of each rank counts, with what it
/// was started with. If its step has several nodes, or none of its ranks is here, all its nodes are asked. Throws
/// Error: not_found where there is none, unavailable where a node does not answer, invalid_argument.
EnvironmentReport report_of_running_job(const std::string& job);

/// What a helper on one of these nodes prints.
std::string lines_of_running_ranks(const std::string& job);

}  // namespace ddp::tools::env
