// Lets ddp-info run in a rank before its program: the same process then becomes the program.
#pragma once

#include <string>

#include "workers/spawn.hpp"

namespace ddp::launcher {

/// Beside ddprun. Throws ExitError(kExitNotFound) where it is not there.
std::string find_ddp_info();

/// Makes the process dump its environment to @p destination (a file, or "stderr") with those of the other ranks, which
/// meet in the attempt's store. @param ddp_info of find_ddp_info()
void dump_environment_first(SpawnRequest& request, const std::string& ddp_info, const std::string& destination);

}  // namespace ddp::launcher
