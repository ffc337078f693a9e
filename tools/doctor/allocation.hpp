// A batch script or a shell of salloc is on one node only: srun runs the doctor on all of them.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "base/env_table.hpp"

namespace ddp::tools::doctor {

/// Nodes of an allocation that this process could examine; 1: it is in none, or a task of a step.
int allocated_nodes(const base::Environment& environment);

/// srun ends with 1 for failures of its own, too; so the doctor's statuses are told from here on.
inline constexpr int kFirstStatusUnderSrun = 10;

/// Runs the doctor with @p arguments on all nodes and waits for it. @param limit for the ranks to meet
/// @return the exit status. Throws Error(unavailable) where srun cannot run it, within a minute more than @p limit.
int examine_allocation(int nodes, std::span<const std::string> arguments, std::chrono::milliseconds limit);

}  // namespace ddp::tools::doctor
