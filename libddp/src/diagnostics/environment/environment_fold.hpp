// Puts the environments of all ranks into one report: equal ones together, and what must not differ but does.
#pragma once

#include <vector>

#include <ddp/diagnostics.hpp>

#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::diagnostics {

/// @param ranks in ascending order. Ranks that are absent have not answered.
EnvironmentReport fold(const std::vector<RankEnvironment>& ranks);

}  // namespace ddp::diagnostics
