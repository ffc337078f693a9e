// The report for people: one block for each kind of node, with a table of its ranks.
#pragma once

#include <set>
#include <string>

#include "topo/report_model.hpp"

namespace ddp::tools {

/// Plain ASCII, lines of any length, a line break at the end.
std::string format_table(const Report& report);

/// Distances of the GPUs to each other and to the usable NICs, in the words of `nvidia-smi topo -m`; empty without
/// GPUs. Ends with a legend of the words that occur.
std::string format_matrices(const Topology& topology);

/// The meanings of those of @p words that are such words, one a line; empty where there are none.
std::string format_path_legend(const std::set<std::string>& words);

}  // namespace ddp::tools
