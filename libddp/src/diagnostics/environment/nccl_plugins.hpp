// The plugins that NCCL would open: they read variables of their own, which are no mistakes.
#pragma once

#include "base/nccl_candidates.hpp"
#include "diagnostics/environment/nccl_file.hpp"

namespace ddp::diagnostics {

/// Adds the names of plugins for networks, tuning, profiling and environments, by NCCL's variables for them and what is
/// loaded already, and says in @p file.found which there are.
void add_plugins(NcclFile& file, const base::NcclSurroundings& surroundings);

}  // namespace ddp::diagnostics
