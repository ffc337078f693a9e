// The line about an attempt that failed and is followed by another.
#include "failure_report_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(RestartLine, SaysWhatFailedAndWhichRestartFollows) {
  JobOutcome outcome;
  outcome.failures = {failure(3, 85)};
  EXPECT_EQ(format_restart_line(outcome, 0, 1, 2),
            "attempt 0 failed: rank 3 on node1 exited with 85; restarting (restart 1 of at most 2)");
  outcome.failures = {failure(3, SIGSEGV, true)};
  EXPECT_EQ(format_restart_line(outcome, 1, 2, 2),
            "attempt 1 failed: rank 3 on node1 was ended by SIGSEGV; restarting (restart 2 of at most 2)");
  outcome.failures[0].abort = AbortCall{.status = 7, .message = "no data\nmore"};
  EXPECT_THAT(format_restart_line(outcome, 1, 1, 2),
              HasSubstr("rank 3 on node1 called PMIx_Abort(7): no data; restart"));
  outcome.early = {early(1, milliseconds(3200))};
  EXPECT_THAT(format_restart_line(outcome, 1, 1, 2),
              HasSubstr("no data (rank 1 (node1) ended with exit code 0, 3.2 s before that); restarting"));
  outcome.early.clear();
  outcome.nodes = {lost_node()};
  EXPECT_EQ(format_restart_line(outcome, 2, 3, 3),
            "attempt 2 failed: node node7: the connection to ddprun's agent (pid 7) was lost; restarting (restart 3 of "
            "at most 3)");
}

TEST(RestartLine, SaysWhoGoesOnWithoutARestart) {
  JobOutcome outcome;
  outcome.nodes = {lost_node()};
  EXPECT_EQ(
      format_going_on_line(outcome, 5, {.before = 4, .survivors = 3}),
      "node node7: the connection to ddprun's agent (pid 7) was lost; 3 of 4 nodes continue (generation 5, no restart "
      "spent)");
  EXPECT_THAT(format_going_on_line(outcome, 1, {.before = 4, .survivors = 2, .left = {"n1"}}),
              HasSubstr("was lost; n1 left; 2 of 4 nodes continue (generation 1"));
  EXPECT_THAT(format_going_on_line(outcome, 1, {.before = 2, .survivors = 1, .joined = {"n5", "n6"}}),
              HasSubstr("; 1 of 2 nodes continues with n5, n6 (generation 1, no restart spent)"));
  const JobOutcome resized{.resized = true};
  EXPECT_EQ(format_going_on_line(resized, 2, {.before = 3, .survivors = 3, .joined = {"n5"}}),
            "n5 joined; 3 of 3 nodes continue with it (generation 2, no restart spent)");
  EXPECT_EQ(format_going_on_line(resized, 3, {.before = 4, .survivors = 3, .left = {"n2"}}),
            "n2 left; 3 of 4 nodes continue (generation 3, no restart spent)");
  EXPECT_EQ(format_going_on_line(resized, 3, {.before = 2, .survivors = 1, .joined = {"n5", "n6"}, .left = {"n2"}}),
            "n2 left; 1 of 2 nodes continues with n5, n6 (generation 3, no restart spent)");
  EXPECT_EQ(format_going_on_line(resized, 3, {.before = 2, .survivors = 2}),
            "the ranks asked to start again; 2 of 2 nodes continue (generation 3, no restart spent)");
  const std::string by = "ddp-info resize on n0";
  EXPECT_EQ(format_going_on_line(resized, 3, {.before = 3, .survivors = 1, .parked = {"n1", "n2"}, .asked_by = by}),
            "n1, n2 wait as spares, asked by ddp-info resize on n0; 1 of 3 nodes continues (generation 3, no restart "
            "spent)");
  EXPECT_EQ(
      format_going_on_line(resized, 4, {.before = 1, .survivors = 1, .joined = {"n1"}, .asked_by = by}),
      "n1 joined, asked by ddp-info resize on n0; 1 of 1 node continues with it (generation 4, no restart spent)");
}

}  // namespace
}  // namespace ddp::launcher::test
