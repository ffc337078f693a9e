// How large the job is and on which hosts: --nnodes, --nproc-per-node, -H.
#pragma once

#include <string>

#include "options/launch_options.hpp"

namespace ddp::launcher {

/// "N" or "MIN:MAX", 1 <= MIN <= MAX <= kMaxNodes. Throws ExitError(kExitUsage) that names @p option.
NodeRange parse_node_range(const std::string& option, const std::string& text);

/// A number from 1 to kMaxRanksPerNode, or "cpu", "gpu", "auto"; "xpu" is taken for "gpu". Throws like
/// parse_node_range.
RanksPerNode parse_ranks_per_node(const std::string& option, const std::string& text);

}  // namespace ddp::launcher
