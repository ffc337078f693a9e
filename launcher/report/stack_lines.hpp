// The part of the report that says where the ranks stood.
#pragma once

#include <string>

#include "diagnostics/stacks/stack_gatherer.hpp"

namespace ddp::launcher {

/// At most 16 different stacks, each shortened, and notes; empty without any.
std::string stack_lines(const diagnostics::RankStacks& stacks);

}  // namespace ddp::launcher
