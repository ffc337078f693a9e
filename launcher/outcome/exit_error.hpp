// The exit statuses of ddprun that scripts rely on, and the errors that have them.
#pragma once

#include "cli/exit_error.hpp"

namespace ddp::launcher {

using cli::ExitError;
using cli::kExitUsage;

inline constexpr int kExitNotExecutable = 126;  ///< as POSIX shells do (XCU 2.8.2)
inline constexpr int kExitNotFound = 127;       ///< as POSIX shells do (XCU 2.8.2)

}  // namespace ddp::launcher
