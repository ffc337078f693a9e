#include "topo/rank_colours.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace ddp::tools {

RankColour colour_of(int local_rank) {
  // White only where black would have a contrast below 4.5 (WCAG 2.1, 1.4.3).
  static constexpr std::array<std::pair<std::string_view, std::string_view>, kColours> kPalette = {{
      {"#E69F00", "#000000"},
      {"#56B4E9", "#000000"},
      {"#009E73", "#000000"},
      {"#F0E442", "#000000"},
      {"#0072B2", "#FFFFFF"},
      {"#D55E00", "#000000"},
      {"#CC79A7", "#000000"},
  }};
  const auto& [fill, text] = kPalette[static_cast<std::size_t>(local_rank % kColours)];
  return {.fill = fill, .text = text, .pattern = local_rank / kColours % kPatterns};
}

}  // namespace ddp::tools
