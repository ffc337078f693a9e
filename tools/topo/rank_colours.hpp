// How the picture tells ranks apart: a palette for every kind of colour vision, and patterns where it is used up.
#pragma once

#include <string_view>

namespace ddp::tools {

struct RankColour {
  std::string_view fill;  ///< "#E69F00"
  std::string_view text;  ///< readable on it
  int pattern = 0;        ///< 0: plain; 1 to kPatterns - 1: lines or dots on it
};

/// Colours of Okabe and Ito, "Color Universal Design" (2008), without black. Each is used plain first.
inline constexpr int kColours = 7;
inline constexpr int kPatterns = 5;

/// Repeats after kColours * kPatterns ranks; the number in the box tells those apart.
RankColour colour_of(int local_rank);

}  // namespace ddp::tools
