// What the coordinator of a job is told: the user's options and this process's role.
#pragma once

#include "base/env_table.hpp"
#include "coordinator/coordinator.hpp"
#include "launch/launch_role.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// Without CoordinatorOptions::peers.
CoordinatorOptions coordinator_options(const LaunchOptions& options, const RoleDecision& role,
                                       const base::Environment& environment);

}  // namespace ddp::launcher
