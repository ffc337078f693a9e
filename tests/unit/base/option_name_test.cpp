#include "base/option_name.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
