// What to look at while a job's nodes do not come: at its start, and when the time is over.
#pragma once

#include <string>

#include "base/env_table.hpp"
#include "launch/launch_role.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// For a process that leads: where the others must come to, why they perhaps cannot, and what was perhaps meant. Empty
/// where nothing is known.
std::string waiting_hint(const LaunchOptions& options, const RoleDecision& role, const base::Environment& environment);

/// "localhost is each host's own name, ...", where the nodes of several hosts shall meet at it; else empty.
std::string own_endpoint_remark(const std::string& endpoint);

/// What to do where srun could start no agent in the job that the environment names, perhaps one that has ended.
std::string stale_job_hint(const base::Environment& environment);

}  // namespace ddp::launcher
