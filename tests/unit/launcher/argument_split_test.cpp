// ddprun's options and the program's words are told apart as Python's argparse does for torchrun.
#include "options/argument_split.hpp"

#include <gmock/gmock.h>

#include "report/exit_error.hpp"

namespace ddp::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

const std::vector<OptionShape> kKnown{{.name = "--nproc-per-node", .takes_value = true},
                                      {.name = "--verbose", .takes_value = false},
                                      {.name = "--version", .takes_value = false},
                                      {.name = "-v", .takes_value = false}};

std::string complaint(const Words& words) {
  try {
    split_arguments(words, kKnown);
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitUsage);
    return error.what();
  }
  return "no complaint";
}

TEST(ArgumentSplit, OptionsEndAtTheFirstOtherWord) {
  const auto split =
      split_arguments(Words{"-v", "--nproc-per-node", "2", "train", "--nproc-per-node", "--", "-v"}, kKnown);
  EXPECT_THAT(split.options, ElementsAre("-v", "--nproc-per-node", "2"));
  EXPECT_THAT(split.command, ElementsAre("train", "--nproc-per-node", "--", "-v"));
}

TEST(ArgumentSplit, DoubleDashEndsOptionsOnce) {
  const auto split = split_arguments(Words{"--", "--", "-v"}, kKnown);
  EXPECT_THAT(split.options, IsEmpty());
  EXPECT_THAT(split.command, ElementsAre("--", "-v"));
}

TEST(ArgumentSplit, AcceptsArgparseSpellings) {
  for (const Words& words : {Words{"--nproc_per_node=2", "p"}, Words{"--nproc", "2", "p"}, Words{"--n=2", "p"}}) {
    const auto split = split_arguments(words, kKnown);
    EXPECT_THAT(split.options, ElementsAre("--nproc-per-node", "2"));
    EXPECT_THAT(split.command, ElementsAre("p"));
  }
}

TEST(ArgumentSplit, UnderscoresInValuesStay) {
  EXPECT_THAT(split_arguments(Words{"--nproc-per-node=a_b=c"}, kKnown).options,
              ElementsAre("--nproc-per-node", "a_b=c"));
}

TEST(ArgumentSplit, AValueMayLookLikeAnOption) {
  EXPECT_THAT(split_arguments(Words{"--nproc-per-node", "-1", "p"}, kKnown).options,
              ElementsAre("--nproc-per-node", "-1"));
}

TEST(ArgumentSplit, ALoneDashIsAWord) { EXPECT_THAT(split_arguments(Words{"-"}, kKnown).command, ElementsAre("-")); }

TEST(ArgumentSplit, Complains) {
  EXPECT_THAT(complaint({"--nporc-per-node", "2"}), HasSubstr("did you mean '--nproc-per-node'?"));
  EXPECT_THAT(complaint({"--qqqqqqqqqqqqqqqqqqqqqqqqq"}), HasSubstr("'ddprun --help' lists the options"));
  EXPECT_THAT(complaint({"--ver"}), HasSubstr("--verbose, --version"));
  EXPECT_THAT(complaint({"--verbose=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(complaint({"--nproc-per-node"}), HasSubstr("needs a value"));
  EXPECT_EQ(complaint({"--verbose", "p"}), "no complaint");
}

}  // namespace
}  // namespace ddp::launcher
