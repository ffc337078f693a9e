// Options and other words are told apart as Python's argparse does for torchrun.
#include "cli/argument_split.hpp"

#include "cli/exit_error.hpp"

namespace ddp::cli {
namespace {

using Words = std::vector<std::string>;

const std::vector<OptionShape> kKnown{{.name = "--nproc-per-node", .takes_value = true},
                                      {.name = "--verbose", .takes_value = false},
                                      {.name = "--version", .takes_value = false},
                                      {.name = "-v", .takes_value = false},
                                      {.name = "--redirects", .takes_value = true, .of_torchrun = true},
                                      {.name = "-r", .takes_value = true, .of_torchrun = true},
                                      {.name = "-m", .takes_value = false, .of_torchrun = true},
                                      {.name = "--role", .takes_value = true, .of_torchrun = true},
                                      {.name = "--report-json", .takes_value = true},
                                      {.name = "--dump-env", .takes_value = true, .value_optional = true},
                                      {.name = "--generate-man", .takes_value = false, .hidden = true}};

SplitArguments split(const Words& words) { return split_arguments(words, kKnown, {}); }

std::string split_complaint(const Words& words) {
  try {
    split(words);
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitUsage);
    return error.what();
  }
  return "no complaint";
}

TEST(ArgumentSplit, OptionsEndAtTheFirstOtherWord) {
  const auto got = split(Words{"-v", "--nproc-per-node", "2", "train", "--nproc-per-node", "--", "-v"});
  EXPECT_THAT(got.options, ElementsAre("-v", "--nproc-per-node", "2"));
  EXPECT_THAT(got.command, ElementsAre("train", "--nproc-per-node", "--", "-v"));
}

TEST(ArgumentSplit, AnOptionalValueStandsBehindAnEqualsSign) {
  EXPECT_THAT(split(Words{"--dump-env=stderr", "p"}).options, ElementsAre("--dump-env", "stderr"));
  const auto alone = split(Words{"--dump-env", "train.py", "out.json"});
  EXPECT_THAT(alone.command, ElementsAre("train.py", "out.json"));
  EXPECT_THAT(alone.program_hint, HasSubstr("write --dump-env=train.py"));
  EXPECT_THAT(split(Words{"--dump-env", "-v", "p"}).program_hint, IsEmpty());
  EXPECT_THAT(split(Words{"--dump-env", "--", "stderr"}).command, ElementsAre("stderr"));
}

TEST(ArgumentSplit, WhatIsSurelyAnOptionsValueIsNoProgram) {
  for (const char* value : {"stderr", "stdout", "-", "env.json", "/tmp/a.txt", "b.log"}) {
    EXPECT_THAT(split_complaint({"--dump-env", value, "train.py"}),
                testing::AllOf(HasSubstr("'--dump-env' takes its value after a '='"),
                               HasSubstr(std::string("--dump-env=") + value)));
  }
}

TEST(ArgumentSplit, DoubleDashEndsOptionsOnce) {
  const auto got = split(Words{"--", "--", "-v"});
  EXPECT_THAT(got.options, IsEmpty());
  EXPECT_THAT(got.command, ElementsAre("--", "-v"));
}

TEST(ArgumentSplit, AcceptsArgparseSpellings) {
  for (const Words& words : {Words{"--nproc_per_node=2", "p"}, Words{"--nproc", "2", "p"}, Words{"--n=2", "p"}}) {
    const auto got = split(words);
    EXPECT_THAT(got.options, ElementsAre("--nproc-per-node", "2"));
    EXPECT_THAT(got.command, ElementsAre("p"));
  }
}

TEST(ArgumentSplit, UnderscoresInValuesStay) {
  EXPECT_THAT(split(Words{"--nproc-per-node=a_b=c"}).options, ElementsAre("--nproc-per-node", "a_b=c"));
}

TEST(ArgumentSplit, AValueMayLookLikeAnOption) {
  EXPECT_THAT(split(Words{"--nproc-per-node", "-1", "p"}).options, ElementsAre("--nproc-per-node", "-1"));
}

TEST(ArgumentSplit, ASeparateValueThatLooksLikeAnOptionIsAForgottenValue) {
  EXPECT_THAT(split_complaint({"--redirects", "-v", "p"}), HasSubstr("needs a value, and '-v' looks like an option"));
  EXPECT_THAT(split_complaint({"--redirects", "--", "p"}), HasSubstr("needs a value"));
  EXPECT_THAT(split_complaint({"-r", "-1.2.3", "p"}), HasSubstr("needs a value"));
  EXPECT_THAT(split(Words{"--redirects=-v", "p"}).options, ElementsAre("--redirects", "-v"));
  for (const char* value : {"-", "", "-1.5", "-.5", "-a b"}) {
    EXPECT_THAT(split(Words{"-r", value, "p"}).options, ElementsAre("-r", value)) << value;
  }
}

TEST(ArgumentSplit, ShortOptionsMayBeJoined) {
  for (const Words& words : {Words{"-r3", "p"}, Words{"-r=3", "p"}, Words{"-r", "3", "p"}}) {
    const auto got = split(words);
    EXPECT_THAT(got.options, ElementsAre("-r", "3"));
    EXPECT_THAT(got.command, ElementsAre("p"));
  }
  EXPECT_THAT(split(Words{"-mvr3", "p"}).options, ElementsAre("-m", "-v", "-r", "3"));
  EXPECT_THAT(split(Words{"-mr", "3", "p"}).options, ElementsAre("-m", "-r", "3"));
  EXPECT_THAT(split(Words{"-rm", "p"}).options, ElementsAre("-r", "m"));
  EXPECT_THAT(split(Words{"-r=", "p"}).options, ElementsAre("-r", ""));
  EXPECT_THAT(split_complaint({"-m3", "p"}), HasSubstr("unknown option '-3' in '-m3'"));
  EXPECT_THAT(split_complaint({"-m=3", "p"}), HasSubstr("takes no value"));
  EXPECT_THAT(split_complaint({"-redirects"}), testing::Not(HasSubstr("unknown"))) << "-r with the value 'edirects'";
}

TEST(ArgumentSplit, BeginningsMeanTorchrunsOptionsFirst) {
  EXPECT_THAT(split(Words{"--re=3"}).options, ElementsAre("--redirects", "3"));
  EXPECT_THAT(split(Words{"--rep=f"}).options, ElementsAre("--report-json", "f"));
  EXPECT_THAT(split_complaint({"--r=3"}), HasSubstr("--redirects, --role, --report-json"));
}

TEST(ArgumentSplit, HiddenOptionsNeedTheirFullName) {
  EXPECT_THAT(split(Words{"--generate_man"}).options, ElementsAre("--generate-man"));
  EXPECT_THAT(split_complaint({"--generate-ma"}), testing::Not(HasSubstr("did you mean")));
}

TEST(ArgumentSplit, ALoneDashIsAWord) { EXPECT_THAT(split(Words{"-"}).command, ElementsAre("-")); }

TEST(ArgumentSplit, Complains) {
  EXPECT_THAT(split_complaint({"--nporc-per-node", "2"}), HasSubstr("did you mean '--nproc-per-node'?"));
  EXPECT_THAT(split_complaint({"--nporc", "2"}), HasSubstr("did you mean '--nproc-per-node'?")) << "a beginning of it";
  EXPECT_THAT(split_complaint({"--qqqqqqqqqqqqqqqqqqqqqqqqq"}), HasSubstr("'ddprun --help' lists the options"));
  EXPECT_THAT(split_complaint({"-nproc-per-node", "2"}), HasSubstr("did you mean '--nproc-per-node'?"));
  EXPECT_THAT(split_complaint({"--foo"}), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(split_complaint({"--a\nb"}), HasSubstr("unknown option '--a?b'")) << "errors are one line";
  EXPECT_THAT(split_complaint({"-x"}), HasSubstr("unknown option '-x'"));
  EXPECT_THAT(split_complaint({"--ver"}), HasSubstr("--verbose, --version"));
  EXPECT_THAT(split_complaint({"--verbose=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(split_complaint({"--nproc-per-node"}), HasSubstr("needs a value"));
  EXPECT_EQ(split_complaint({"--verbose", "p"}), "no complaint");
}

TEST(ArgumentSplit, OptionsMayStandBehindOtherWordsWhereTheRulesSaySo) {
  const auto got = split_arguments(Words{"a", "-v", "b", "--role", "x", "--", "-r"}, kKnown, {.interleaved = true});
  EXPECT_THAT(got.options, ElementsAre("-v", "--role", "x"));
  EXPECT_THAT(got.command, ElementsAre("a", "b", "-r"));
}

TEST(ArgumentSplit, AnotherProgramIsNamedInHints) {
  const SplitRules rules{.program = "tool", .hint_for_foreign_option = [](std::string_view name) {
                           return std::string(name == "-np" ? "write --nproc-per-node" : "");
                         }};
  const auto complaint = [&](const Words& words) -> std::string {
    try {
      split_arguments(words, kKnown, rules);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint({"--zzz"}), HasSubstr("'tool --help' lists the options"));
  EXPECT_THAT(complaint({"-np4"}), HasSubstr("write --nproc-per-node"));
}

}  // namespace
}  // namespace ddp::cli
