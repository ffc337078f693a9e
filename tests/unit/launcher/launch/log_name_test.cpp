// Folders of log files say whose they are: the user's name for the run, or Slurm's.
#include "launch/log_name.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

LaunchOptions named(const std::string& run_id) {
  LaunchOptions options;
  options.rendezvous.run_id = run_id;
  return options;
}

const base::Environment kBatch{{{"SLURM_JOB_ID", "1234"}, {"SLURM_PROCID", "0"}}};
const base::Environment kStep{{{"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "2"}}};

TEST(LogName, OutsideSlurmItIsTheRunId) {
  EXPECT_EQ(log_name(LaunchOptions{}, base::Environment{{}}), "none");
  EXPECT_EQ(log_name(named("run7"), base::Environment{{}}), "run7");
}

TEST(LogName, SlurmsJobNamesItAndTheStepThatTheUserMade) {
  EXPECT_EQ(log_name(LaunchOptions{}, kBatch), "1234");
  EXPECT_EQ(log_name(LaunchOptions{}, kStep), "1234.2");
  const base::Environment interactive{{{"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "4294967290"}}};
  EXPECT_EQ(log_name(LaunchOptions{}, interactive), "1234");
}

TEST(LogName, AGivenRunIdWins) { EXPECT_EQ(log_name(named("run7"), kStep), "run7"); }

TEST(LogName, TheRandomRunIdOfStandaloneDoesNot) {
  LaunchOptions standalone = named("0123456789abcdef");
  standalone.standalone = true;
  EXPECT_EQ(log_name(standalone, kStep), "1234.2");
  EXPECT_EQ(log_name(standalone, base::Environment{{}}), "0123456789abcdef");
}

}  // namespace
}  // namespace ddp::launcher
