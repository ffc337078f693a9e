// The plugins that NCCL would open: they read variables of their own, which are no mistakes.
#pragma once

#include <string>
#include <vector>

#include "base/nccl_candidates.hpp"
#include "diagnostics/environment/nccl_file.hpp"

namespace ddp::diagnostics {

struct FoundPlugin {
  std::string variable;     ///< that names it: "NCCL_NET_PLUGIN"
  std::string path;         ///< without the surroundings' root
  bool by_default = false;  ///< the variable is not set
};

/// Those that would be opened, by NCCL's variables for them.
std::vector<FoundPlugin> find_plugins(const base::NcclSurroundings& surroundings);

/// Adds the names of plugins for networks, tuning, profiling and environments, by NCCL's variables for them and what is
/// loaded already, and says in @p file.found which there are.
void add_plugins(NcclFile& file, const base::NcclSurroundings& surroundings);

}  // namespace ddp::diagnostics
