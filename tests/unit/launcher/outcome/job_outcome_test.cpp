// The root cause is what came first, and the exit status is its.
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

std::chrono::system_clock::time_point at(int second) { return std::chrono::system_clock::time_point{seconds(second)}; }

RankFailure failed(int code, int second, bool by_signal = false) {
  return {.name = {.rank = 1, .local_rank = 1, .pid = 11, .host = "n1"},
          .end = RankEnd{.code = code, .by_signal = by_signal, .core_dumped = false, .time = at(second)},
          .time = at(second)};
}
NodeFailure lost(int exit_status, int second) {
  return {
      .host = "n2", .node_rank = 1, .num_ranks = 4, .message = "lost", .exit_status = exit_status, .time = at(second)};
}
StoppedRank stopped() {
  return {.name = {.rank = 2, .local_rank = 2, .pid = 12, .host = "n1"},
          .signal = SIGSTOP,
          .before_failure = seconds(3),
          .time = at(1)};
}

TEST(JobOutcome, SuccessIsZero) {
  JobOutcome outcome;
  outcome.ended_on_request = 3;  // counts alone are no failure
  EXPECT_TRUE(outcome.success());
  EXPECT_FALSE(outcome.failed_by_itself());
  EXPECT_EQ(outcome.root_cause(), RootCause::none);
  EXPECT_EQ(outcome.exit_status(), 0);
}

TEST(JobOutcome, ANodeIsTheRootCauseUnlessARankFailedBefore) {
  JobOutcome outcome;
  outcome.nodes = {lost(9, 10), lost(8, 5)};
  EXPECT_EQ(outcome.exit_status(), 9);
  for (const int second : {9, 11}) {  // what the clock of the rank's node says does not matter
    outcome.failures = {failed(85, second)};
    outcome.rank_failed_first = false;
    EXPECT_EQ(outcome.root_cause(), RootCause::node);
    EXPECT_EQ(outcome.exit_status(), 9);
    outcome.rank_failed_first = true;
    EXPECT_EQ(outcome.root_cause(), RootCause::rank);
    EXPECT_EQ(outcome.exit_status(), 85);
  }
  EXPECT_TRUE(outcome.failed_by_itself());
}

TEST(JobOutcome, ANodeThatCannotStartKeepsItsStatusButIsNeverZero) {
  JobOutcome outcome;
  outcome.nodes = {lost(127, 1)};
  EXPECT_EQ(outcome.exit_status(), 127);
  outcome.nodes = {lost(0, 1)};
  EXPECT_EQ(outcome.exit_status(), 1);
}

TEST(JobOutcome, AStoppedRankIsTheCauseAndTheFailureGivesTheStatus) {
  JobOutcome outcome;
  outcome.stopped = {stopped()};
  outcome.failures = {failed(5, 4)};
  EXPECT_EQ(outcome.root_cause(), RootCause::stopped_rank);
  EXPECT_EQ(outcome.exit_status(), 5);
}

TEST(JobOutcome, SignalsAndAbortsHaveTheirStatus) {
  JobOutcome outcome;
  outcome.failures = {failed(SIGSEGV, 1, true)};
  EXPECT_EQ(outcome.exit_status(), 139);
  outcome.failures = {failed(0, 1)};
  outcome.failures.front().abort = AbortCall{.status = 0, .message = "over"};
  EXPECT_EQ(outcome.exit_status(), 1);  // still a failure
  outcome.failures.front().abort->status = 256 + 9;
  EXPECT_EQ(outcome.exit_status(), 9);
  outcome.failures.front().abort->status = -1;
  outcome.failures.front().end.reset();
  EXPECT_EQ(outcome.exit_status(), 255);
}

TEST(JobOutcome, WhatTheUserEndedIsNotRestarted) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGTERM;
  EXPECT_EQ(outcome.root_cause(), RootCause::signal);
  EXPECT_EQ(outcome.exit_status(), 143);
  EXPECT_FALSE(outcome.failed_by_itself());
  outcome = {};
  outcome.timed_out = true;
  EXPECT_EQ(outcome.root_cause(), RootCause::timeout);
  EXPECT_EQ(outcome.exit_status(), 124);
  EXPECT_FALSE(outcome.failed_by_itself());
  outcome.failures = {failed(85, 1)};
  EXPECT_EQ(outcome.exit_status(), 85);
  EXPECT_FALSE(outcome.failed_by_itself());
}

TEST(JobOutcome, RanksThatCannotBeKilledAreAFailure) {
  JobOutcome outcome;
  outcome.unkillable = {{.rank = 0, .local_rank = 0, .pid = 10}};
  EXPECT_FALSE(outcome.success());
  EXPECT_EQ(outcome.root_cause(), RootCause::unkillable);
  EXPECT_EQ(outcome.exit_status(), 1);
}

}  // namespace
}  // namespace ddp::launcher
