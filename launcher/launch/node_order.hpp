// The order in which the user wants a Slurm job's nodes: SLURM_HOSTFILE, Slurm's arbitrary distribution.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::launcher {

struct NodeOrder {
  std::vector<std::string> nodes{};  ///< all of the job's, each once; empty: Slurm's own order
  std::string remark{};              ///< why SLURM_HOSTFILE is not used; else empty
};

/// The nodes of the file that SLURM_HOSTFILE names, in its order, which may name one for each of its ranks; then the
/// job's others. Nothing for a heterogeneous job.
NodeOrder order_of_nodes(const base::Environment& environment);

}  // namespace ddp::launcher
