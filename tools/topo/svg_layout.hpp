// Layout of the picture: boxes in boxes, in pixels, independent of SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topo/report_model.hpp"

namespace ddp::tools {

struct Rect {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

struct TextLine {
  std::string text;
  double x = 0;
  double y = 0;  ///< of the baseline
  double size = 12;
  bool bold = false;
  bool centred = false;  ///< about x
};

enum class BoxKind { machine, package, numa, core, gpu, nic, swatch, legend };
std::string_view to_string(BoxKind kind) noexcept;  ///< the enumerator's name

struct Box {
  BoxKind kind = BoxKind::machine;
  Rect rect;
  std::vector<TextLine> lines;
  int local_rank = -1;    ///< whose colour it has; -1: none
  bool available = true;  ///< false: may not be used, or cannot be
  std::string hover;      ///< more than fits in
  std::vector<Box> children;
};

struct Picture {
  double width = 0;
  double height = 0;
  std::vector<Box> boxes;  ///< for each kind of node the machine and its legend, one below the other
};

/// The smallest text in pixels.
inline constexpr double kSmallText = 10;

/// Width of a text in pixels: rather too wide than too narrow, since the viewer chooses the font (DejaVu Sans is the
/// widest of the usual ones).
double text_width(std::string_view text, double size, bool bold);

/// The beginning of a text that fits, with "..." where something was cut off; at least one character.
std::string clipped(const std::string& text, double width, double size, bool bold);

/// Boxes with the same parent never overlap, and children lie within their parent. Hardware threads are folded into
/// their cores; virtual functions that cannot be used are left out.
Picture lay_out(const Report& report);

}  // namespace ddp::tools
