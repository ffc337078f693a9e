// The report says the root cause first, in torchrun's words, and stays readable whatever failed.
#include "failure_report_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(FailureReport, ATerminalGetsTheRootCauseInColour) {
  EXPECT_EQ(highlighted("===\nRoot Cause (x):\n[0]:\n"), "===\n\x1b[1;31mRoot Cause (x):\x1b[0m\n[0]:\n");
  EXPECT_EQ(highlighted("ddprun: no report\n"), "ddprun: no report\n");
}

TEST(FailureReport, NothingForSuccess) { EXPECT_EQ(format_failure_report(JobOutcome{}, kContext), ""); }

TEST(FailureReport, LooksAsTorchrunsButWithTheRootCauseFirst) {
  JobOutcome outcome;
  outcome.failures = {failure(3, 1)};
  outcome.failures[0].traces.error_file = "/tmp/log_folder_of_a_job/none_1/attempt_0/3/error.json";
  outcome.failures[0].traces.error_content =
      R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": )"
      R"("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: bad\n", "timestamp": "1"}}})";
  outcome.failures[0].traces.stderr_tail = "the same traceback";
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, StartsWith("============================================================\n"
                               "train FAILED\n"
                               "------------------------------------------------------------\n"
                               "Root Cause (first observed failure):\n"
                               "[0]:\n"
                               "  time      : 2023-11-1"));
  EXPECT_THAT(text, EndsWith("  host      : node1\n"
                             "  rank      : 3 (local_rank: 3)\n"
                             "  exitcode  : 1 (pid: 103)\n"
                             "  error_file: /tmp/log_folder_of_a_job/none_1/attempt_0/3/error.json\n"
                             "  traceback : Traceback (most recent call last):\n"
                             "    File \"a.py\", line 1, in f\n"
                             "  ValueError: bad\n"
                             "------------------------------------------------------------\n"
                             "Other Failures:\n"
                             "  <NO_OTHER_FAILURES>\n"
                             "============================================================\n"));
}

TEST(FailureReport, ListsTheGenerationsOfAJobWhoseNodesHaveChanged) {
  JobOutcome outcome;
  outcome.failures = {failure(3, 1)};
  ReportContext context = kContext;
  context.generations = {{}, {.reason = GenerationReason::restart}};
  EXPECT_THAT(format_failure_report(outcome, context), Not(HasSubstr("Generations")));
  context.generations.push_back(
      {.reason = GenerationReason::node_lost, .change = {.joined = {"n7"}, .left = {"n3"}}, .lost = {"n1", "n2"}});
  context.generations.push_back({.reason = GenerationReason::requested});
  const std::string text = format_failure_report(outcome, context);
  EXPECT_THAT(text, HasSubstr("Generations:\n  0 at "));
  EXPECT_THAT(text, HasSubstr(": start\n  1 at "));
  EXPECT_THAT(text, HasSubstr(": restart after a failure\n  2 at "));
  EXPECT_THAT(text, HasSubstr(": n1, n2 were lost, n3 left, n7 joined\n  3 at "));
  EXPECT_THAT(text, HasSubstr(": the ranks asked for it\n"));
  context.generations.resize(40, {.reason = GenerationReason::node_lost, .lost = {"n9"}});
  EXPECT_THAT(format_failure_report(outcome, context),
              HasSubstr("Generations:\n  24 before (--report-json lists all)\n  24 at "));
}

TEST(FailureReport, BordersAreAsWideAsTheLongestLine) {
  JobOutcome outcome;
  outcome.failures = {failure(0, SIGTERM, true)};
  outcome.failures[0].end->core_dumped = false;
  std::istringstream lines(format_failure_report(outcome, {.program = "a"}));
  std::string first;
  std::getline(lines, first);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  EXPECT_LT(longest, 60U);
  EXPECT_EQ(first, std::string(longest, '='));
}

TEST(FailureReport, RootCauseComesFirst) {
  JobOutcome outcome;
  outcome.failures = {failure(3, 85), failure(0, 1)};
  outcome.ended_on_request = 1;
  outcome.killed = 1;
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_LT(text.find("Root Cause"), text.find("rank      : 3 (local_rank: 3)"));
  EXPECT_LT(text.find("exitcode  : 85 (pid: 103)"), text.find("Other Failures:"));
  EXPECT_LT(text.find("Other Failures:"), text.find("rank      : 0 "));
  EXPECT_THAT(text, HasSubstr("2 other ranks were ended by ddprun, 1 by SIGKILL."));
  EXPECT_THAT(text, Not(HasSubstr("NO_OTHER_FAILURES")));
}

TEST(FailureReport, ARankThatEndedEarlyIsNamedBelowTheRootCause) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 1)};
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("Ended early")));
  outcome.early = {early(1, milliseconds(3200))};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text,
              HasSubstr("---\nEnded early: rank 1 (node1) ended with exit code 0, 3.2 s before the first failure; "
                        "the others may have waited for it.\n---"));
  EXPECT_LT(text.find("Root Cause (first observed failure):"), text.find("Ended early"));
  EXPECT_LT(text.find("Ended early"), text.find("Other Failures:"));
  outcome.early.push_back(early(3, milliseconds(100)));
  outcome.early.push_back(early(2, milliseconds(50)));
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("Ended early: ranks 1-3 ended with exit code 0, the first 3.2 s before the first "
                        "failure; the others may have waited for them.\n"));
  for (int rank = 5; rank < 4096; rank += 2) outcome.early.push_back(early(rank, milliseconds(1)));
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("Ended early: 2049 ranks (--report-json lists them)"));
}

TEST(FailureReport, ARankThatEndedEarlyIsNamedWhereASignalEndsTheOthers) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGINT;
  outcome.ended_on_request = 3;
  outcome.early = {early(1, milliseconds(60'000))};
  EXPECT_THAT(
      format_failure_report(outcome, kContext),
      EndsWith("\nddprun: rank 1 (node1) ended with exit code 0, 60.0 s before that; the others may have waited "
               "for it\n"));
}

TEST(FailureReport, AStoppedRankIsTheRootCause) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 5)};
  outcome.failures[0].traces.stderr_tail = "timed out";
  outcome.stopped = {
      {.name = name(2), .signal = SIGSTOP, .before_failure = std::chrono::milliseconds(8100), .time = kTime}};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_LT(text.find("Root Cause (stopped before the first failure):"),
            text.find("rank 2 was stopped by SIGSTOP 8.1 s before the first failure"));
  EXPECT_LT(text.find("8.1 s before the first failure"), text.find("rank      : 0 "));
  EXPECT_THAT(text, HasSubstr("    timed out\n"));
}

TEST(FailureReport, ALostNodeIsTheRootCauseUnlessARankFailedBefore) {
  JobOutcome outcome;
  outcome.nodes = {lost_node()};
  outcome.failures = {failure(0, 5)};
  outcome.failures[0].time += std::chrono::seconds(1);
  std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  host      : node7\n  node      : 7 (8 ranks)\n"
                              "  failure   : the connection to ddprun's agent (pid 7) was lost\n  is the node up?\n"));
  EXPECT_LT(text.find("node7"), text.find("Other Failures:"));
  EXPECT_GT(text.find("rank      : 0 "), text.find("Other Failures:"));
  outcome.rank_failed_first = true;
  text = format_failure_report(outcome, kContext);
  EXPECT_GT(text.find("node7"), text.find("Other Failures:"));
  EXPECT_LT(text.find("rank      : 0 "), text.find("Other Failures:"));
}

TEST(FailureReport, ANodeAlone) {
  JobOutcome outcome;
  outcome.nodes = {lost_node()};
  outcome.ended_on_request = 1;
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("<NO_OTHER_FAILURES>"));
  EXPECT_THAT(text, HasSubstr("1 other rank was ended by ddprun."));
}

TEST(FailureReport, AJobOfOneNodeThatCouldNotBeStartedIsOneLine) {
  JobOutcome outcome;
  outcome.nodes = {lost_node()};
  outcome.nodes[0].message = "starting rank 0: no";
  EXPECT_EQ(format_failure_report(outcome, kContext), "ddprun: starting rank 0: no\n");
  EXPECT_THAT(format_failure_report(outcome, {.program = "train", .num_nodes = 2, .world_size = 16}),
              HasSubstr("  failure   : starting rank 0: no\n"));
  outcome.forwarded_signal = 15;
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("ddprun received SIGTERM after the first failure."));
}

TEST(FailureReport, NodesThatDidNotComeTogetherHaveNoNumber) {
  JobOutcome outcome;
  outcome.nodes = {lost_node()};
  outcome.nodes[0].host.clear();
  outcome.nodes[0].node_rank = -1;
  const std::string text = format_failure_report(outcome, {.program = "train", .num_nodes = 2, .world_size = 16});
  EXPECT_THAT(text, HasSubstr("the connection to ddprun's agent (pid 7) was lost"));
  EXPECT_EQ(count(text, "  host      :") + count(text, "  node      :"), 0U);
}

TEST(FailureReport, SizeAndRestartsAreSaidWhereThereAreAny) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 5)};
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("train FAILED\n---"));
  EXPECT_THAT(
      format_failure_report(
          outcome,
          {.program = "train", .attempt = 1, .restarts_used = 1, .max_restarts = 2, .num_nodes = 4, .world_size = 16}),
      HasSubstr("train FAILED\n16 ranks on 4 nodes; attempt 1: 1 of at most 2 restarts used\n---"));
  EXPECT_THAT(format_failure_report(outcome, {.program = "train", .max_restarts = 1}),
              HasSubstr("train FAILED\nattempt 0: 0 of at most 1 restart used\n---"));
}

TEST(FailureReport, FourThousandFailuresStayReadable) {
  const std::string frames(300'000, 'x');
  JobOutcome outcome;
  for (int rank = 0; rank < 4096; ++rank) {
    outcome.failures.push_back(failure(rank, 1 + rank % 2));  // none looks like its neighbour
    outcome.failures.back().traces.error_content = rank < 20 ? "start " + frames + "\nend" : "e";
  }
  outcome.nodes = {lost_node(std::chrono::seconds(3))};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "  exitcode  :"), 16U);
  EXPECT_EQ(count(text, "  node      :"), 1U);
  EXPECT_THAT(text, HasSubstr("[16]:"));
  EXPECT_THAT(text, HasSubstr("... and 4080 more (--report-json lists all)\n"));
  EXPECT_LT(text.size(), 100'000U);
  EXPECT_LT(text.find("  node      :"), text.find("rank      : 1 "));
}

TEST(FailureReport, SixteenOthersAreAllListed) {
  JobOutcome outcome;
  for (int rank = 0; rank < 17; ++rank) outcome.failures.push_back(failure(rank, 1 + rank % 2));
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "  exitcode  :"), 17U);
  EXPECT_THAT(text, Not(HasSubstr("more")));
}

TEST(FailureReport, ASignalToDdprunIsOneLine) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGTERM;
  outcome.ended_on_request = 3;
  outcome.killed = 1;
  EXPECT_EQ(format_failure_report(outcome, kContext),
            "ddprun: ended by SIGTERM: forwarded to all ranks; 3 ranks ended after it, 1 had to be killed\n");
  outcome.lost = 2;
  EXPECT_THAT(format_failure_report(outcome, kContext), EndsWith("killed, 2 were on nodes lost meanwhile\n"));
}

TEST(FailureReport, ATimeoutIsOneLine) {
  JobOutcome outcome;
  outcome.timed_out = true;
  outcome.ended_on_request = 1;
  EXPECT_EQ(format_failure_report(outcome, kContext),
            "ddprun: ended by --timeout: all ranks got SIGTERM; 1 rank ended after it\n");
}

TEST(FailureReport, WhatEndedAFailingJobIsSaid) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 5)};
  outcome.forwarded_signal = SIGTERM;
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("ddprun received SIGTERM after the first failure.\n"));
  outcome.forwarded_signal = 0;
  outcome.timed_out = true;
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("--timeout expired after the first failure.\n"));
}

TEST(FailureReport, UnkillableRanksAreNamedUpToSixteen) {
  JobOutcome outcome;
  for (int rank = 0; rank < 20; ++rank) outcome.unkillable.push_back(name(rank));
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, StartsWith("ddprun: rank 0 (pid 100 on node1) did not end even after SIGKILL"));
  EXPECT_EQ(count(text, "did not end"), 16U);
  EXPECT_THAT(text, EndsWith("ddprun: ... and 4 more\n"));
}

TEST(FailureReport, HostsThatDoNotAnswerAreNamedUpToSixteen) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGTERM;
  for (int host = 0; host < 20; ++host) outcome.silent.push_back("n" + std::to_string(host));
  std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("ddprun: n0 did not answer; processes of the job may still be running there\n"));
  EXPECT_EQ(count(text, "did not answer"), 16U);
  EXPECT_THAT(text, EndsWith("ddprun: ... and 4 more\n"));
  outcome.failures = {failure(0, 5)};
  EXPECT_THAT(format_failure_report(outcome, kContext), EndsWith("ddprun: ... and 4 more\n"));
}

TEST(FailureReport, StacksComeBeforeTheLineThatSaysWhatEndedTheJob) {
  JobOutcome outcome;
  outcome.timed_out = true;
  outcome.ended_on_request = 5;
  outcome.stacks.groups = {
      {.ranks = {0, 1, 2, 3, 7}, .tool = "py-spy", .text = "thread \"a\"\n  f (x.py:1)"},
      {.ranks = {4}, .tool = "proc", .text = std::string(3000, 'x') + "\n" + std::string(9000, 'y')}};
  outcome.stacks.notes = {{.hosts = {"n0", "n1"}, .text = "no gdb"}};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, StartsWith("ddprun: where the ranks stood before they were ended:\n"
                               "  ranks 0-3, 7 (py-spy):\n"
                               "    thread \"a\"\n"
                               "      f (x.py:1)\n"
                               "  rank 4 (proc):\n"
                               "    xxx"));
  EXPECT_THAT(text, HasSubstr("x\n    ... 9001 more bytes (--report-json has them)\n  n0, n1: no gdb\n"));
  EXPECT_THAT(text, EndsWith("ddprun: ended by --timeout: all ranks got SIGTERM; 5 ranks ended after it\n"));
}

TEST(FailureReport, WhoHungComesBeforeStacks) {
  JobOutcome outcome;
  outcome.timed_out = true;
  outcome.stacks.groups = {{.ranks = {0}, .tool = "gdb", .text = "f"}};
  outcome.hang = {.when = "before the ranks were ended", .text = "rank 1 is stopped\n  rank 0 (n0): waits\n"};
  const std::string hang =
      "ddprun: before the ranks were ended: rank 1 is stopped\n  rank 0 (n0): waits\nddprun: where";
  EXPECT_THAT(format_failure_report(outcome, kContext), StartsWith(hang));
  outcome.failures = {failure(0, 5)};
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("==\n" + hang));
}

TEST(FailureReport, ManyDifferentStacksAreCounted) {
  JobOutcome outcome;
  outcome.timed_out = true;
  for (int rank = 0; rank < 20; ++rank)
    outcome.stacks.groups.push_back({.ranks = {rank}, .tool = "gdb", .text = std::to_string(rank)});
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "(gdb)"), 16U);
  EXPECT_THAT(text, HasSubstr("... and 4 more stacks (--report-json has all)"));
}

TEST(FailureReport, WhatTheStoreRefusedIsRepeated) {
  JobOutcome outcome;
  outcome.store_refusals = {"n0: the job's store refused one", "n0: the job's store refused another"};
  EXPECT_EQ(format_failure_report(outcome, kContext), "");
  outcome.failures = {failure(0, 5)};
  EXPECT_THAT(
      format_failure_report(outcome, kContext),
      testing::EndsWith("ddprun: n0: the job's store refused one\nddprun: n0: the job's store refused another\n"));
}

}  // namespace
}  // namespace ddp::launcher::test
