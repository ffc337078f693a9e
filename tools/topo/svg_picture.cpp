#include "topo/svg_picture.hpp"

#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "topo/rank_colours.hpp"
#include "topo/xml_text.hpp"

namespace ddp::tools {
namespace {

constexpr std::string_view kInk = "#222222";
constexpr std::string_view kUnused = "#E8E8E8";

struct Style {
  std::string fill;
  std::string_view stroke = "#444444";
  std::string_view text = kInk;
  double radius = 0;
};

std::string pattern_id(int local_rank) { return fmt::format("rank-{}", local_rank % (kColours * kPatterns)); }

std::string rank_fill(int local_rank) {
  const RankColour colour = colour_of(local_rank);
  return colour.pattern == 0 ? std::string(colour.fill) : fmt::format("url(#{})", pattern_id(local_rank));
}

Style style_of(const Box& box) {
  switch (box.kind) {
    case BoxKind::machine: return {.fill = "#FFFFFF", .radius = 6};
    case BoxKind::package: return {.fill = "#F6F6F6", .stroke = "#888888", .radius = 5};
    case BoxKind::numa: return {.fill = "#FFFFFF", .stroke = "#AAAAAA", .radius = 4};
    case BoxKind::gpu: return {.fill = "#F2F7E8", .stroke = "#5B7F1E", .radius = 4};
    case BoxKind::nic: return {.fill = "#E9F1FA", .stroke = "#2F6CA8", .radius = 4};
    case BoxKind::legend: return {.fill = "#FFFFFF", .stroke = "#CCCCCC", .radius = 4};
    case BoxKind::core:
    case BoxKind::swatch: break;
  }
  if (box.local_rank < 0)
    return {.fill = std::string(box.available ? kUnused : "#FFFFFF"), .stroke = "#999999", .radius = 2};
  return {.fill = rank_fill(box.local_rank), .text = colour_of(box.local_rank).text, .radius = 2};
}

class Drawing {
 public:
  explicit Drawing(const Picture& picture) : picture_(picture) {}

  std::string draw() {
    for (const Box& box : picture_.boxes) add(box, 1);
    // Patterns are only known now.
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{0:g}\" height=\"{1:g}\" "
        "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
        "<title>ddp-info topo</title>\n"
        "{2}"
        "<rect class=\"background\" width=\"{0:g}\" height=\"{1:g}\" fill=\"#FFFFFF\"/>\n"
        "{3}</svg>\n",
        picture_.width, picture_.height, definitions(), body_);
  }

 private:
  void add(const Box& box, std::size_t depth) {
    if (box.local_rank >= 0) local_ranks_.insert(box.local_rank % (kColours * kPatterns));
    const Style style = style_of(box);
    const std::string indent(depth * 2, ' ');
    body_ += fmt::format("{}<g class=\"{}\">\n", indent, to_string(box.kind));
    if (!box.hover.empty()) body_ += fmt::format("{}  <title>{}</title>\n", indent, escape_xml(box.hover));
    body_ += fmt::format(
        "{}  <rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" rx=\"{:g}\" fill=\"{}\" stroke=\"{}\"{}/>\n",
        indent, box.rect.x, box.rect.y, box.rect.width, box.rect.height, style.radius, style.fill, style.stroke,
        box.available ? "" : " stroke-dasharray=\"3 2\"");
    for (const TextLine& line : box.lines) {
      body_ += fmt::format("{}  <text x=\"{:g}\" y=\"{:g}\" font-size=\"{:g}\" fill=\"{}\"{}{}>{}</text>\n", indent,
                           line.x, line.y, line.size, box.available ? style.text : "#666666",
                           line.bold ? " font-weight=\"bold\"" : "", line.centred ? " text-anchor=\"middle\"" : "",
                           escape_xml(line.text));
    }
    for (const Box& child : box.children) add(child, depth + 1);
    body_ += indent + "</g>\n";
  }

  std::string definitions() const {
    std::string text;
    for (const int local_rank : local_ranks_) {
      const RankColour colour = colour_of(local_rank);
      if (colour.pattern == 0) continue;
      text += fmt::format(
          "  <pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
          "<rect width=\"6\" height=\"6\" fill=\"{}\"/>{}</pattern>\n",
          pattern_id(local_rank), colour.fill, pattern_marks(colour));
    }
    return text.empty() ? text : "<defs>\n" + text + "</defs>\n";
  }

  /// Thin, and away from the colour of the number above them.
  static std::string pattern_marks(const RankColour& colour) {
    const std::string_view ink = colour.text == "#000000" ? "#FFFFFF" : "#000000";
    switch (colour.pattern) {
      case 1: return fmt::format("<path d=\"M0 6L6 0\" stroke=\"{}\"/>", ink);
      case 2: return fmt::format("<circle cx=\"3\" cy=\"3\" r=\"1.2\" fill=\"{}\"/>", ink);
      case 3: return fmt::format("<path d=\"M3 0V6\" stroke=\"{}\"/>", ink);
      default: return fmt::format("<path d=\"M0 3H6\" stroke=\"{}\"/>", ink);
    }
  }

  const Picture& picture_;
  std::string body_;
  std::set<int> local_ranks_;  ///< whose colours occur
};

}  // namespace

std::string draw_svg(const Picture& picture) { return Drawing{picture}.draw(); }

}  // namespace ddp::tools
