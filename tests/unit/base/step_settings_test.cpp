// What `srun --ddp` has set for a task, and that launchers inside it drop.
#include "base/step_settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ddp::base {
namespace {

TEST(StepSettings, ComeBackAsTheyWereWritten) {
  const StepSettings settings{.step = "1234.0", .cpus = "0-3,8", .names = {"RANK", "OMP_NUM_THREADS"}};
  EXPECT_EQ(encode(settings), "1234.0:0-3,8:RANK,OMP_NUM_THREADS");
  EXPECT_EQ(parse_step_settings(encode(settings)), settings);
  const StepSettings nothing{.step = "1.2", .cpus = "", .names = {}};
  EXPECT_EQ(parse_step_settings(encode(nothing)), nothing);
}

TEST(StepSettings, WhatNobodyWroteIsNothing) {
  for (const char* text : {"", "1.0", "1.0:0-3", "x:0:RANK", "1.0:0;3:RANK", "1.0:0:RANK,", "1.0:0:,RANK",
                           "1.0:0:PATH=x", "1.0:0:rank", "1.0:0:A B"}) {
    EXPECT_FALSE(parse_step_settings(text)) << text;
  }
}

class DropStepSettings : public testing::Test {
 protected:
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
  ::setenv(kStepSettingsVariable, "7.3:0-1:STEP_TEST_OURS", 1);
  const auto settings = drop_step_settings();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->cpus, "0-1");
  EXPECT_EQ(std::getenv("STEP_TEST_OURS"), nullptr);
  EXPECT_EQ(std::getenv(kStepSettingsVariable), nullptr);
  EXPECT_STREQ(std::getenv("STEP_TEST_MINE"), "1");
  EXPECT_FALSE(drop_step_settings());
}

TEST_F(DropStepSettings, TheBindingIsThatOfOneStepOnly) {
  ::setenv(kStepSettingsVariable, "7.2:0-1:STEP_TEST_OURS", 1);
  const auto settings = drop_step_settings();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->cpus, "");
  EXPECT_EQ(std::getenv("STEP_TEST_OURS"), nullptr);
}

TEST_F(DropStepSettings, TextOfSomebodyElseRemovesNothing) {
  ::setenv(kStepSettingsVariable, "STEP_TEST_MINE", 1);
  EXPECT_FALSE(drop_step_settings());
  EXPECT_STREQ(std::getenv("STEP_TEST_MINE"), "1");
}

}  // namespace
}  // namespace ddp::base
