// Draws the picture of `ddp-info topo --svg`.
#pragma once

#include <string>

#include "topo/report_model.hpp"
#include "topo/svg_layout.hpp"

namespace ddp::tools {

/// A standalone SVG 1.1 document without scripts or references to other files. Each box is a <g class="KIND"> that
/// holds its <rect>, its texts and the boxes inside it.
std::string draw_svg(const Picture& picture);

inline std::string draw_svg(const Report& report) { return draw_svg(lay_out(report)); }

}  // namespace ddp::tools
