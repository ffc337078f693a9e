// Suggestions for typing mistakes: the fewest changes win, and distant words are none.
#include "base/closest_word.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ddp::base {
namespace {

const std::vector<std::string> kWords{"pmix", "pmi2", "torchrun", "single"};

TEST(ClosestWord, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(closest_word("pmix", kWords, 0), "pmix");
  EXPECT_EQ(closest_word("pmixx", kWords, 1), "pmix");
  EXPECT_EQ(closest_word("torhrun", kWords, 1), "torchrun");
  EXPECT_EQ(closest_word("singel", kWords, 2), "single");
  EXPECT_EQ(closest_word("pni2", kWords, 1), "pmi2");
}

TEST(ClosestWord, TooFarIsNothing) {
  EXPECT_EQ(closest_word("singel", kWords, 1), "");
  EXPECT_EQ(closest_word("mpirun", kWords, 2), "");
  EXPECT_EQ(closest_word("", kWords, 3), "");
  EXPECT_EQ(closest_word("", kWords, 4), "pmix");
  EXPECT_EQ(closest_word("x", {}, 10), "");
}

TEST(ClosestWord, TheFirstOfSeveralEquallyClose) {
  EXPECT_EQ(closest_word("pmi", kWords, 1), "pmix");
  EXPECT_EQ(closest_word("pmi1", kWords, 1), "pmix");
}

}  // namespace
}  // namespace ddp::base
