// The process mapping that PMI-2 (PMI_process_mapping) and PMIx (PMIX_ANL_MAP) give: which ranks run on which node.
#pragma once

#include <string_view>
#include <vector>

namespace ddp::world {

/// Reads "(vector,(first node,node count,ranks per node),...)", the "vector" mapping of MPICH's PMI specification.
/// Blocks are laid out one after another; when all are used up and ranks are left, they repeat from the first (cyclic
/// placement).
/// @return the node number of each rank in [0, world_size). Node numbers are made dense: 0, 1, ... in ascending order.
/// Throws Error(protocol) for anything that is not such a mapping or does not cover all ranks.
std::vector<int> parse_process_mapping(std::string_view text, int world_size);

}  // namespace ddp::world
