// The command line's values are read strictly, with torchrun's defaults.
#include "options/command_line.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "report/exit_error.hpp"

namespace ddp::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

const base::Environment kNothing{{}};

LaunchOptions parse(const Words& words, const base::Environment& environment = kNothing) {
  return std::get<LaunchOptions>(parse_command_line(words, environment));
}

TEST(CommandLine, Defaults) {
  const auto options = parse({"train", "--epochs", "3"});
  EXPECT_EQ(options.nproc_per_node, 1);
  EXPECT_EQ(options.failure_grace, std::chrono::seconds(2));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(30));
  EXPECT_FALSE(options.verbose);
  EXPECT_THAT(options.command, ElementsAre("train", "--epochs", "3"));
}

TEST(CommandLine, ReadsValuesAndTakesTheLast) {
  const auto options = parse({"-v", "--nproc-per-node", "4096", "--failure-grace=0.5", "--shutdown-timeout", "7",
                              "--shutdown_timeout=0", "p"});
  EXPECT_EQ(options.nproc_per_node, 4096);
  EXPECT_EQ(options.failure_grace, std::chrono::milliseconds(500));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(0));
  EXPECT_TRUE(options.verbose);
}

TEST(CommandLine, RefusesWhatIsNoCount) {
  for (const char* value : {"0", "-1", "4097", "99999999999999999999", "x", "", " 2", "2 ", "2.0", "+2", "0x2"}) {
    EXPECT_THROW(parse({"--nproc-per-node", value, "p"}), ExitError) << value;
  }
}

TEST(CommandLine, RefusesWhatIsNoNumberOfSeconds) {
  for (const char* value : {"-1", "86401", "1e300", "1e999", "nan", "inf", "x", "", "2s"}) {
    EXPECT_THROW(parse({"--shutdown-timeout", value, "p"}), ExitError) << value;
  }
}

TEST(CommandLine, PlacementComesFromTheOptionElseTheEnvironmentElseTheDefault) {
  EXPECT_EQ(parse({"p"}).bind, BindPolicy::numa);
  EXPECT_EQ(parse({"p"}).gpus, topology::GpuVisibility::all);
  const base::Environment environment{{{"DDP_BIND", "socket"}, {"DDP_GPUS", "one"}}};
  EXPECT_EQ(parse({"p"}, environment).bind, BindPolicy::socket);
  EXPECT_EQ(parse({"p"}, environment).gpus, topology::GpuVisibility::one);
  EXPECT_EQ(parse({"--bind", "core", "--gpus=none", "p"}, environment).bind, BindPolicy::core);
  EXPECT_EQ(parse({"--bind", "core", "--gpus=none", "p"}, environment).gpus, topology::GpuVisibility::none);
}

TEST(CommandLine, RefusesUnknownPlacementWords) {
  for (const Words& words : {Words{"--bind", "nuna", "p"}, Words{"--bind=", "p"}, Words{"--gpus", "two", "p"}}) {
    try {
      parse(words);
      ADD_FAILURE() << words[0];
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), kExitUsage);
      EXPECT_THAT(error.what(), HasSubstr("none")) << "the accepted words are listed";
    }
  }
  for (const char* variable : {"DDP_BIND", "DDP_GPUS"}) {
    const base::Environment wrong{{{variable, "nuna"}}};
    EXPECT_THROW(parse({"p"}, wrong), ExitError);
    EXPECT_NO_THROW(parse({"--bind", "core", "--gpus", "one", "p"}, wrong)) << "what is given is not looked up";
  }
  EXPECT_NO_THROW(parse_command_line(Words{"--help"}, base::Environment{{{"DDP_BIND", "nuna"}}}));
}

TEST(CommandLine, NeedsAProgram) {
  EXPECT_THROW(parse({}), ExitError);
  EXPECT_THROW(parse({"--nproc-per-node", "2", "--"}), ExitError);
}

TEST(CommandLine, HelpAndVersionNeedNoProgram) {
  EXPECT_THAT(std::get<Information>(parse_command_line(Words{"-h"}, kNothing)).text, HasSubstr("--nproc-per-node N"));
  EXPECT_THAT(std::get<Information>(parse_command_line(Words{"--version"}, kNothing)).text,
              HasSubstr("ddprun (libddp) "));
}

TEST(CommandLine, HelpAfterTheProgramIsTheProgramsOwn) {
  EXPECT_THAT(parse({"p", "--help"}).command, ElementsAre("p", "--help"));
}

}  // namespace
}  // namespace ddp::launcher
