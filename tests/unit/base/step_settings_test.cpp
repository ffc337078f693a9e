// What `srun --ddp` has set for a task, and that launchers inside it drop.
#include "base/step_settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ddp::base {
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
