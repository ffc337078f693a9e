// What srun's environment becomes. Slurm itself is not there: its configuration comes as a value.
#include "srun_side_fixture.hpp"

#include "support/checkout.hpp"

namespace ddp::srun_plugin::test {
namespace {

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> all;
  for (char** line = ::environ; *line != nullptr; ++line) {
    const std::string text = *line;
    all.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  return all;
}

TEST_F(SrunSideTest, OutsideSlurmNothingIsKnown) {
  const SlurmFacts facts = SlurmFacts::read();
  EXPECT_EQ(facts.plugin_dirs, "");
  EXPECT_EQ(facts.mpi_default, "");
  EXPECT_FALSE(facts.port_range);
  EXPECT_EQ(choose_mpi(facts, false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(facts, true), MpiChoice::leave);
}

TEST_F(SrunSideTest, PmixComesFirst) {
  EXPECT_EQ(choose_mpi(slurm_with({"none", "pmi2", "pmix"}), false), MpiChoice::pmix);
}

TEST_F(SrunSideTest, SeveralComponentsGetPmi2) {
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}), true), MpiChoice::pmi2);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmix"), true), MpiChoice::pmi2);
}

TEST_F(SrunSideTest, ADefaultOfPmixStays) {
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix", "pmix_v4"}, "pmix_v4"), false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmix"), false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmi2"), false), MpiChoice::pmix);
}

TEST_F(SrunSideTest, ThenPmi2) { EXPECT_EQ(choose_mpi(slurm_with({"none", "pmi2"}), false), MpiChoice::pmi2); }

TEST_F(SrunSideTest, WithoutEitherThereIsNothing) {
  EXPECT_EQ(choose_mpi(slurm_with({"none", "cray_shasta"}), false), MpiChoice::nothing_there);
  EXPECT_EQ(choose_mpi(slurm_with({"none"}), true), MpiChoice::nothing_there);
}

TEST_F(SrunSideTest, AnInheritedTicketIsNoTicketOfThisStep) {
  for (const char* by_environment : {"", "0", "1"}) {
    ::setenv(kTicketVariable, "1;4711;of another step", 1);
    ::setenv("SLURM_DDP", by_environment, 1);
    SrunSide("").before_options(CommandLine{}, SlurmFacts{});
    EXPECT_EQ(variable(kTicketVariable), std::nullopt) << by_environment;
  }
}

TEST_F(SrunSideTest, MpiTypeIsSetBeforeOptionsAreRead) {
  SrunSide("").before_options(with_ddp(), slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix");
}

TEST_F(SrunSideTest, ComponentsGetPmi2) {
  SrunSide("").before_options({.ddp = true, .cpus_per_task = false, .components = true}, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmi2");
}

TEST_F(SrunSideTest, ComponentsInAnOrdinaryAllocationGetNoPmi2) {
  CommandLine components{.ddp = true, .cpus_per_task = false, .components = true};
  const SlurmFacts facts = slurm_with({"pmix", "pmi2"}, "pmix");
  const auto type_of = [&] {
    ::unsetenv("SLURM_MPI_TYPE");
    SrunSide("").before_options(components, facts);
    return variable("SLURM_MPI_TYPE");
  };
  components.job_id = true;
  EXPECT_EQ(type_of(), "none");
  components.job_id = false;
  ::setenv("SLURM_JOB_ID", "17", 1);
  EXPECT_EQ(type_of(), "none");
  ::setenv("SLURM_HET_SIZE", "2", 1);
  EXPECT_EQ(type_of(), "pmi2");
  ::unsetenv("SLURM_HET_SIZE");
  components.components = false;
  EXPECT_EQ(type_of(), std::nullopt);  // the site's
}

TEST_F(SrunSideTest, RefusesPmi2ForComponentsThatItWouldNotJoin) {
  for (const std::string mpi : {"", "pmi2", "pmix"}) {
    CommandLine components{.ddp = true, .cpus_per_task = false, .components = true, .mpi = mpi};
    ::setenv("SLURM_JOB_ID", "17", 1);
    ::setenv("SLURM_MPI_TYPE", "pmi2", 1);
    const auto ask = [&] {
      SrunSide side("");
      side.before_options(components, slurm_with({"pmix", "pmi2"}));
      side.after_options(enabled(), {});
    };
    if (mpi == "pmix") {
      EXPECT_NO_THROW(ask()) << "the option overrides the variable";
    } else {
      EXPECT_THROW(ask(), RefusedCommand);
    }
    components.mpi = "pmi2";
    ::setenv("SLURM_HET_SIZE", "2", 1);
    EXPECT_NO_THROW(ask()) << "a heterogeneous job has one PMI-2";
    ::unsetenv("SLURM_HET_SIZE");
  }
}

TEST_F(SrunSideTest, WithoutPmi2ComponentsDoNotGetTheSitesPmix) {
  SrunSide side("");
  side.before_options({.ddp = true, .cpus_per_task = false, .components = true}, slurm_with({"pmix"}, "pmix"));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "none");
  side.before_launch(enabled(), SlurmFacts{});
  EXPECT_FALSE(parse_ticket(variable(kTicketVariable).value_or("")).pmi_available);
}

TEST_F(SrunSideTest, OnlyTheModulefilesMpiTypeMakesRoomForThatOfComponents) {
  const CommandLine components{.ddp = true, .cpus_per_task = false, .components = true};
  ::setenv("__LIBDDP_SET_SLURM_MPI_TYPE", "pmix", 1);
  ::setenv("SLURM_MPI_TYPE", "pmix", 1);
  SrunSide("").before_options(components, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmi2");
  ::setenv("SLURM_MPI_TYPE", "pmix_v4", 1);
  SrunSide("").before_options(components, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix_v4");
}

TEST_F(SrunSideTest, UsersMpiTypeStays) {
  ::setenv("SLURM_MPI_TYPE", "none", 1);
  SrunSide("").before_options(with_ddp(), slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "none");
}

TEST_F(SrunSideTest, TheEnvironmentMayAsk) {
  for (const char* name : {"SLURM_DDP", "_SLURM_SPANK_OPTION_ddp_ddp", kUserVariable}) {
    for (const char* each : kVariables) ::unsetenv(each);
    ::setenv(name, "1", 1);
    SrunSide side("");
    side.before_options({}, slurm_with({"pmix"}));
    EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix") << name;
    EXPECT_TRUE(variable(kUserVariable)) << "Slurm would not see " << name;
    side.after_options({}, {});
    EXPECT_EQ(variable(kUserVariable).has_value(), name == std::string(kUserVariable)) << "tasks would see it";
  }
}

TEST_F(SrunSideTest, AFailureEndsTheStepUnlessTheUserSaysOtherwise) {
  {
    SrunSide side("");
    side.before_options(with_ddp(), {});
    EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), "1");
    side.after_options(enabled(), {});
    EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt) << "a srun in a task would see it";
  }
  ::setenv("SLURM_KILL_BAD_EXIT", "0", 1);
  SrunSide kept("");
  kept.before_options(with_ddp(), {});
  kept.after_options(enabled(), {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), "0");
  ::unsetenv("SLURM_KILL_BAD_EXIT");
  CommandLine arguments = with_ddp();
  arguments.no_kill = true;
  SrunSide("").before_options(arguments, {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
  arguments = with_ddp();
  arguments.kill_on_bad_exit = false;
  SrunSide("").before_options(arguments, {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
  ::setenv("SLURM_NO_KILL", "", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
}

TEST_F(SrunSideTest, WordsForNoSwitchItOff) {
  for (const char* word : {"no", "false", "OFF", "0"}) {
    ::setenv("SLURM_DDP", word, 1);
    SrunSide("").before_options({}, slurm_with({"pmix"}));
    EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt) << word;
  }
  ::setenv("SLURM_DDP", "flase", 1);
  testing::internal::CaptureStderr();
  SrunSide("").before_options({}, slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("SLURM_DDP: 'flase'"));
}

TEST_F(SrunSideTest, CpusPerTaskAreThoseOfTheJob) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), "6");
}

TEST_F(SrunSideTest, CpusPerTaskOfTheUserStay) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  SrunSide("").before_options({.ddp = true, .cpus_per_task = true, .components = false}, {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), std::nullopt);
  ::setenv("SRUN_CPUS_PER_TASK", "2", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), "2");
}

TEST_F(SrunSideTest, TheBackendOfTheCommandLineWinsAlsoWhereItIsAuto) {
  ::setenv("DDP_BACKEND", "gloo", 1);
  SrunSide side("");
  side.before_options(with_ddp(), slurm_with({"pmix"}));
  PluginOptions options = enabled();
  options.backend = "gloo";  // as DDP_BACKEND says
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), "gloo");
  options.backend = "auto";
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), "auto");
  ::unsetenv("DDP_BACKEND");
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), std::nullopt);
}

TEST_F(SrunSideTest, WithoutDdpNothingChanges) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  const auto before = environment();
  testing::internal::CaptureStderr();
  SrunSide side(ddp::test::built_program("ddp-step"));
  side.before_options({.ddp = false, .cpus_per_task = false, .components = true}, slurm_with({"pmix"}));
  side.after_options({}, slurm_with({"pmix"}));
  side.before_launch({}, slurm_with({"pmix"}));
  side.at_end();
  EXPECT_EQ(environment(), before);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
}

TEST_F(SrunSideTest, ASlurmWithoutPmiIsTold) {
  SrunSide side(ddp::test::built_program("ddp-step"));
  side.before_options(with_ddp(), slurm_with({"none"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt);
  side.before_launch(enabled(), {});
  EXPECT_FALSE(parse_ticket(variable(kTicketVariable).value_or("")).pmi_available);
  side.at_end();
}

}  // namespace
}  // namespace ddp::srun_plugin::test
