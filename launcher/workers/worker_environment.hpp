// A rank's environment: the user's, without the identity that another launcher gave ddprun itself, and with torchrun's
// variables.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/torchrun_environment.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::launcher {

using EnvironmentMap = std::map<std::string, std::string, std::less<>>;

/// Whether a variable says who a task is or how it reaches its launcher (PMIX_RANK, SLURM_PROCID, LOCAL_RANK, ...).
/// Such variables would give every worker the identity of ddprun. Facts about the allocation (SLURM_JOB_ID) and tuning
/// (PMIX_MCA_*) are not among them.
bool is_task_identity(std::string_view name);

/// @p inherited without the variables that are task identity.
EnvironmentMap without_task_identity(const EnvironmentMap& inherited);

/// Adds torchrun's variables to @p inheritable, which without_task_identity() returned; the @p settings that the user
/// has not made; and DDP_BIND=none, since ddprun binds the rank. With @p virtual_local_rank, LOCAL_RANK is 0, and the
/// only visible GPU is the rank's own. Throws Error(invalid_argument) where no device is left for it.
EnvironmentMap worker_environment(EnvironmentMap inheritable, const base::TorchrunEnvironment& worker,
                                  const std::vector<topology::Setting>& settings, bool virtual_local_rank = false);

/// "NAME=value" lines as execve(2) takes them.
std::vector<std::string> environment_lines(const EnvironmentMap& environment);

}  // namespace ddp::launcher
