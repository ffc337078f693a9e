// Suggestions for typing mistakes: the fewest changes win, and distant words are none.
#include "base/closest_word.hpp"

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

const std::vector<std::string> kNames{"--nproc", "--nproc-per-node", "--export", "--explain"};

TEST(OptionName, BeginningsMeanWhatTheyBegin) {
  EXPECT_THAT(options_meant_by("--expo", kNames), ElementsAre("--export"));
  EXPECT_THAT(options_meant_by("--exp", kNames), ElementsAre("--export", "--explain"));
  EXPECT_THAT(options_meant_by("--exported", kNames), IsEmpty());
}

TEST(OptionName, AWholeNameIsNoBeginning) {
  EXPECT_THAT(options_meant_by("--nproc", kNames), ElementsAre("--nproc"));
  EXPECT_THAT(options_meant_by("--nproc-", kNames), ElementsAre("--nproc-per-node"));
}

TEST(OptionName, MistakesInNamesAndInTheirBeginnings) {
  EXPECT_EQ(closest_option("--exprot", kNames), "--export");
  EXPECT_EQ(closest_option("--nprok-per", kNames), "--nproc-per-node");
  EXPECT_EQ(closest_option("--colour", kNames), "");
  EXPECT_EQ(closest_option("--x", kNames), "");
}

}  // namespace

}  // namespace ddp::base
