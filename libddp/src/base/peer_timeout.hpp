// DDP_PEER_TIMEOUT: how long a rank or host that others wait for may give no sign of life before they give it up.
#pragma once

#include <chrono>

#include "base/env_table.hpp"

namespace ddp::base {

/// Throws Error(invalid_argument) for less than 5 s: a healthy process may be stopped, or wait for memory, for 2 s.
std::chrono::milliseconds peer_timeout(const Environment& environment);

}  // namespace ddp::base
