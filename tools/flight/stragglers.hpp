// Who came late to operations that all ranks have finished.
#pragma once

#include <vector>

#include "flight/analysis.hpp"
#include "flight/group_calls.hpp"

namespace ddp::tools::flight {

/// Clocks of different hosts are not compared: in an operation that nobody leaves before all have come, who comes last
/// is who stays for the shortest time. Ranks that came last often enough, or made the others wait for long enough, to
/// matter; the worst first.
std::vector<Straggler> find_stragglers(const std::vector<GroupCalls>& groups);

}  // namespace ddp::tools::flight
