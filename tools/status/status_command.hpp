// ddp-info status: who hangs in a running job, seen from outside.
#pragma once

#include "status/options.hpp"

namespace ddp::tools::status {

inline constexpr int kCannotTell = 2;

/// Prints what is known. Returns the exit status: 0 nothing hangs, 1 a rank is missing or hangs, 2 it cannot tell.
/// Throws Error.
int run_status(StatusOptions options);

}  // namespace ddp::tools::status
