// The legend of the picture: what each colour means.
#pragma once

#include "topo/svg_layout.hpp"

namespace ddp::tools {

/// A box at (0, 0) with one entry for each rank, grouped by NUMA node; at least @p width wide. Where there are too many
/// ranks for that, one line for each NUMA node.
Box lay_out_legend(const NodeKind& kind, double width);

}  // namespace ddp::tools
