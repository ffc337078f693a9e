// The report says the root cause first, and the exit status is the root cause's own.
#include "report/failure_report.hpp"

#include <signal.h>

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

using testing::HasSubstr;
using testing::Not;

const ReportContext kContext{.program = "train", .host = "node1"};
const std::chrono::system_clock::time_point kTime{std::chrono::seconds(1'700'000'000)};

RankFailure failure(int rank, int code, bool by_signal = false) {
  return {.name = {.rank = rank, .local_rank = rank, .pid = 100 + rank},
          .end = RankEnd{.code = code, .by_signal = by_signal, .core_dumped = by_signal, .time = kTime},
          .abort = {},
          .time = kTime};
}

TEST(FailureReport, NothingForSuccess) {
  EXPECT_EQ(format_failure_report(JobOutcome{}, kContext), "");
  EXPECT_EQ(JobOutcome{}.exit_status(), 0);
}

TEST(FailureReport, RootCauseComesFirst) {
  JobOutcome outcome;
  outcome.failures = {failure(3, 85), failure(0, 1)};
  outcome.ended_on_request = 1;
  outcome.killed = 1;
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_LT(text.find("train FAILED"), text.find("Root Cause"));
  EXPECT_LT(text.find("Root Cause"), text.find("rank      : 3 (local_rank: 3)"));
  EXPECT_LT(text.find("exitcode  : 85 (pid: 103)"), text.find("Other Failures:"));
  EXPECT_LT(text.find("Other Failures:"), text.find("rank      : 0 "));
  EXPECT_THAT(text, HasSubstr("host      : node1"));
  EXPECT_THAT(text, HasSubstr("2 other ranks were ended by ddprun, 1 of them by SIGKILL."));
  EXPECT_THAT(text, Not(HasSubstr("NO_OTHER_FAILURES")));
  EXPECT_EQ(outcome.exit_status(), 85);
}

TEST(FailureReport, SignalsHaveNames) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGSEGV, true)};
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("signal    : SIGSEGV (11), core dumped"));
  EXPECT_EQ(outcome.exit_status(), 139);
}

TEST(FailureReport, AStoppedRankIsTheRootCauseButTheStatusIsTheFirstFailures) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 5)};
  outcome.stopped = {{.name = {.rank = 2, .local_rank = 2, .pid = 102},
                      .signal = SIGSTOP,
                      .before_failure = std::chrono::milliseconds(8100),
                      .time = kTime}};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_LT(text.find("rank 2 was stopped by SIGSTOP 8.1 s before the first failure"), text.find("rank      : 0 "));
  EXPECT_EQ(outcome.exit_status(), 5);
}

TEST(FailureReport, AbortStatusZeroIsStillAFailure) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 0)};
  outcome.failures.front().abort = AbortCall{.status = 0, .message = "over"};
  EXPECT_EQ(outcome.exit_status(), 1);
  outcome.failures.front().abort->status = 256 + 9;
  EXPECT_EQ(outcome.exit_status(), 9);
}

TEST(FailureReport, ASignalToDdprunIsOneLine) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGTERM;
  outcome.ended_on_request = 3;
  outcome.killed = 1;
  EXPECT_EQ(format_failure_report(outcome, kContext),
            "ddprun: ended by SIGTERM: passed on to all ranks; 3 ranks ended after it, 1 had to be killed\n");
  EXPECT_EQ(outcome.exit_status(), 143);
}

}  // namespace
}  // namespace ddp::launcher
