// Ranks can be told apart, and their numbers read.
#include "topo/rank_colours.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>

namespace ddp::tools {
namespace {

/// WCAG 2.1, "relative luminance".
double luminance(std::string_view colour) {
  constexpr std::array<double, 3> kWeights = {0.2126, 0.7152, 0.0722};
  double sum = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double part = std::strtol(std::string(colour.substr(1 + 2 * i, 2)).c_str(), nullptr, 16) / 255.0;
    sum += kWeights[i] * (part <= 0.03928 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(RankColours, ColoursAndPatternsAreUsedUpBeforeTheyRepeat) {
  std::set<std::tuple<std::string_view, int>> seen;
  for (int rank = 0; rank < kColours * kPatterns; ++rank) {
    EXPECT_EQ(colour_of(rank).pattern, rank / kColours);
    seen.emplace(colour_of(rank).fill, colour_of(rank).pattern);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kColours * kPatterns));
  EXPECT_EQ(colour_of(kColours * kPatterns).fill, colour_of(0).fill);
  EXPECT_EQ(colour_of(kColours * kPatterns).pattern, 0);
}

TEST(RankColours, NumbersCanBeReadOnThem) {
  for (int rank = 0; rank < kColours; ++rank) {
    const double fill = luminance(colour_of(rank).fill);
    const double text = luminance(colour_of(rank).text);
    EXPECT_GE((std::max(fill, text) + 0.05) / (std::min(fill, text) + 0.05), 4.5) << rank;
  }
}

}  // namespace
}  // namespace ddp::tools
