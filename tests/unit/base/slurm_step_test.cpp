// Which Slurm step an environment describes.
#include <ddp/error.hpp>

#include "base/slurm_step.hpp"

namespace ddp::base {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

SlurmStep read(Variables variables) { return SlurmStep::read(Environment{std::move(variables)}); }

/// Rank 5 of 8, of which three are on this second node.
Variables task() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "7"},
          {"SLURM_PROCID", "5"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "5,3"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURMD_NODENAME", "n2"}};
}

TEST(SlurmStep, ATaskOfAStep) {
  const SlurmStep step = read(task());
  EXPECT_EQ(step.kind, SlurmStep::Kind::user);
  EXPECT_TRUE(step.is_task());
  EXPECT_EQ(step.name, "1234.7");
  EXPECT_EQ(step.rank, 5);
  EXPECT_EQ(step.num_tasks, 8);
  EXPECT_EQ(step.local_rank, 1);
  EXPECT_EQ(step.node_rank, 1);
  EXPECT_EQ(step.num_nodes, 2);
  EXPECT_EQ(step.tasks_per_node, "5,3");
  EXPECT_EQ(step.node_list, "n[1-2]");
  EXPECT_EQ(step.node_name, "n2");
}

TEST(SlurmStep, AWorkerOfALauncherInATaskIsNoTask) {
  Variables worker = task();
  worker.erase("SLURM_PROCID");
  EXPECT_EQ(read(worker).kind, SlurmStep::Kind::user);
  EXPECT_FALSE(read(worker).is_task());
}

TEST(SlurmStep, NoStep) {
  EXPECT_EQ(read({}).kind, SlurmStep::Kind::none);
  EXPECT_EQ(read({}).rank, std::nullopt);
  for (const char* id : {"", "batch", "-1", "1 ", "4294967296"}) {
    Variables variables = task();
    variables["SLURM_STEP_ID"] = id;
    EXPECT_EQ(read(variables).kind, SlurmStep::Kind::none) << "'" << id << "'";
    EXPECT_FALSE(read(variables).is_task());
  }
}

TEST(SlurmStep, BatchScriptsAndInteractiveShellsAreNotTheUsers) {
  // from SLURM_MAX_NORMAL_STEP_ID on; SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_PENDING_STEP
  for (const char* id : {"4294967280", "4294967290", "4294967291", "4294967292", "4294967293"}) {
    Variables variables = task();
    variables["SLURM_STEP_ID"] = id;
    EXPECT_EQ(read(variables).kind, SlurmStep::Kind::special) << id;
    EXPECT_FALSE(read(variables).is_task()) << id;
  }
  Variables last = task();
  last["SLURM_STEP_ID"] = "4294967279";
  EXPECT_TRUE(read(last).is_task());
}

TEST(SlurmStep, NumbersAreNumbers) {
  for (const char* name :
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"}) {
    Variables variables = task();
    variables[name] = "x";
    EXPECT_THROW(read(variables), Error) << name;
  }
}

}  // namespace

// What `srun --ddp` has set for a task, and that launchers inside it drop.

namespace {

TEST(StepSettings, ComeBackAsTheyWereWritten) {
  const StepSettings settings{
      .step = "1234.0",
      .cpus = "0-3,8",
      .variables = {{.name = "RANK", .digest = value_digest("1")}, {.name = "OMP_NUM_THREADS", .digest = 0xa}}};
  EXPECT_EQ(encode(settings), "1234.0:0-3,8:RANK=86019afc,OMP_NUM_THREADS=0000000a");
  EXPECT_EQ(parse_step_settings(encode(settings)), settings);
  const StepSettings nothing{.step = "1.2", .cpus = ""};
  EXPECT_EQ(parse_step_settings(encode(nothing)), nothing);
}

TEST(StepSettings, WhatNobodyWroteIsNothing) {
  for (const char* text : {"", "1.0", "1.0:0-3", "x:0:RANK=00000001", "1.0:0;3:RANK=00000001", "1.0:0:RANK=00000001,",
                           "1.0:0:,RANK=00000001", "1.0:0:RANK", "1.0:0:RANK=", "1.0:0:RANK=1", "1.0:0:RANK=0000000x",
                           "1.0:0:RANK=000000001", "1.0:0:rank=00000001", "1.0:0:A B=00000001", "1.0:0:=00000001"}) {
    EXPECT_FALSE(parse_step_settings(text)) << text;
  }
}

std::string settings_of(const std::string& step) {
  return encode(StepSettings{
      .step = step, .cpus = "0-1", .variables = {{.name = "STEP_TEST_OURS", .digest = value_digest("1")}}});
}

struct DropStepSettings : testing::Test {
  void SetUp() override {
    ::setenv("SLURM_JOB_ID", "7", 1);
    ::setenv("SLURM_STEP_ID", "3", 1);
    ::setenv("STEP_TEST_MINE", "1", 1);
    ::setenv("STEP_TEST_OURS", "1", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"SLURM_JOB_ID", "SLURM_STEP_ID", "STEP_TEST_MINE", "STEP_TEST_OURS", kStepSettingsVariable}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(DropStepSettings, RemovesWhatWasSetAndNothingElse) {
  ::setenv(kStepSettingsVariable, settings_of("7.3").c_str(), 1);
  const auto settings = drop_step_settings();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->cpus, "0-1");
  EXPECT_EQ(std::getenv("STEP_TEST_OURS"), nullptr);
  EXPECT_EQ(std::getenv(kStepSettingsVariable), nullptr);
  EXPECT_STREQ(std::getenv("STEP_TEST_MINE"), "1");
  EXPECT_FALSE(drop_step_settings());
}

TEST_F(DropStepSettings, TheBindingIsThatOfOneStepOnly) {
  ::setenv(kStepSettingsVariable, settings_of("7.2").c_str(), 1);
  const auto settings = drop_step_settings();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->cpus, "");
  EXPECT_EQ(std::getenv("STEP_TEST_OURS"), nullptr);
}

TEST_F(DropStepSettings, WhatTheUserHasChangedSinceIsTheUsers) {
  ::setenv(kStepSettingsVariable, settings_of("7.3").c_str(), 1);
  ::setenv("STEP_TEST_OURS", "2", 1);
  ASSERT_TRUE(drop_step_settings());
  EXPECT_STREQ(std::getenv("STEP_TEST_OURS"), "2");
  ::setenv(kStepSettingsVariable, settings_of("7.3").c_str(), 1);
  ::unsetenv("STEP_TEST_OURS");
  ASSERT_TRUE(drop_step_settings());
  EXPECT_EQ(std::getenv("STEP_TEST_OURS"), nullptr);
}

TEST_F(DropStepSettings, TextOfSomebodyElseRemovesNothing) {
  ::setenv(kStepSettingsVariable, "STEP_TEST_MINE", 1);
  EXPECT_FALSE(drop_step_settings());
  EXPECT_STREQ(std::getenv("STEP_TEST_MINE"), "1");
}

}  // namespace

}  // namespace ddp::base
