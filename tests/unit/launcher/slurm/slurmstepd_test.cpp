// A batch script and a shell of salloc are not taken for the task that submitted them.
#include "slurm/slurmstepd.hpp"

#include <sys/prctl.h>

namespace ddp::launcher {
namespace {

base::Environment of_job(const std::string& job) {
  return base::Environment{{{"SLURM_JOB_ID", job},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEPID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "1"},
                            {"SLURM_PROCID", "0"}}};
}

bool keeps_step(const base::Environment& environment, const std::string& surrounding) {
  const base::Environment left = without_foreign_step(environment, surrounding);
  EXPECT_TRUE(left.has("SLURM_JOB_ID") && left.has("SLURM_PROCID"));
  EXPECT_EQ(left.has("SLURM_STEP_ID"), left.has("SLURM_STEPID"));
  EXPECT_EQ(left.has("SLURM_STEP_ID"), left.has("SLURM_STEP_NUM_TASKS"));
  return left.has("SLURM_STEP_ID");
}

TEST(SlurmstepdTest, ATaskKeepsTheDescriptionOfItsStep) {
  EXPECT_TRUE(keeps_step(of_job("7"), "7.0"));
  EXPECT_TRUE(keeps_step(of_job("7"), "7.12"));
}

TEST(SlurmstepdTest, ABatchScriptAndAnInteractiveShellAreNoTasks) {
  EXPECT_FALSE(keeps_step(of_job("7"), "7.batch"));
  EXPECT_FALSE(keeps_step(of_job("7"), "7.interactive"));
  EXPECT_FALSE(keeps_step(of_job("7"), "7.extern")) << "a shell of ssh";
}

TEST(SlurmstepdTest, AnAllocationMadeInATaskIsNotThatTask) { EXPECT_FALSE(keeps_step(of_job("8"), "7.0")); }

TEST(SlurmstepdTest, WhatCannotBeKnownIsLeftAsItIs) {
  EXPECT_TRUE(keeps_step(of_job("7"), ""));
  EXPECT_TRUE(keeps_step(of_job("7"), "what"));
  EXPECT_TRUE(keeps_step(of_job("7"), ".batch"));
  auto component = of_job("7").variables();
  component["SLURM_HET_SIZE"] = "2";
  EXPECT_TRUE(keeps_step(base::Environment{component}, "8.0"));
}

TEST(SlurmstepdTest, ItIsKnownByItsName) {
  EXPECT_FALSE(is_slurmstepd(::getpid()));
  EXPECT_FALSE(is_slurmstepd(0)) << "of another process namespace";
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  ::prctl(PR_SET_NAME, "slurmstepd");
  EXPECT_TRUE(is_slurmstepd(::getpid()));
  ::prctl(PR_SET_NAME, name);
}

}  // namespace
}  // namespace ddp::launcher
