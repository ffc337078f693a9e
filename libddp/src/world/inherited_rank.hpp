// Processes that a rank starts inherit its environment, and with it its place in the job, which is taken.
#pragma once

#include <string>

#include <ddp/world.hpp>

#include "base/env_table.hpp"

namespace ddp::world {

/// Throws Error(invalid_argument), which names both processes, if one that has started this one, at first or second
/// hand, is in the job as the rank that @p environment says this one is. Wrappers that are no ranks, and launchers
/// that a rank starts, are none of these. What cannot be read is passed over. @param proc "/proc".
void refuse_inherited_rank(const base::Environment& environment, LaunchSource source,
                           const std::string& proc = "/proc");

}  // namespace ddp::world
