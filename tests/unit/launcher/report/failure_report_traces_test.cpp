// What the report shows of what a rank left: error file, standard error, log files, signal and abort.
#include "failure_report_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(FailureReport, SignalsHaveNames) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGSEGV, true)};
  std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  signal    : SIGSEGV (11), core dumped\n----"));  // no rows of torch's
  outcome.failures[0].traces.python = true;
  text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  exitcode  : 139 (pid: 101)\n  signal    : SIGSEGV (11), core dumped\n"));
  EXPECT_THAT(text, HasSubstr("  traceback : Signal 11 (SIGSEGV) received by PID 101\n"));
  EXPECT_THAT(text, HasSubstr("  error_file: <N/A>\n"));
}

TEST(FailureReport, WithoutAnErrorFileTheLastLinesOfStderrAreShown) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1), failure(2, 1)};
  outcome.failures[0].traces.python = true;
  outcome.failures[0].traces.stderr_tail = "first line\nlast line\n";
  outcome.failures[1].traces.stderr_tail = "of another rank\n";
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  traceback : To enable traceback see: "
                              "https://pytorch.org/docs/stable/elastic/errors.html\n"
                              "  stderr    : last 2 lines\n    first line\n    last line\n----"));
  EXPECT_THAT(text, Not(HasSubstr("of another rank")));
  outcome.failures[0].traces.stderr_tail = "only line";
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("  stderr    : last line\n    only line\n"));
  outcome.failures[0].traces.stderr_tail = "\n";
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("stderr")));
}

constexpr const char* kTraceback =
    "Traceback (most recent call last):\n  File \"a.py\", line 5, in <module>\n    f()\nValueError: bad loss\n";

TEST(FailureReport, TheHintAtTracebacksIsForPythonProgramsWithoutOne) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1)};
  RankTraces& traces = outcome.failures[0].traces;
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("traceback")));
  traces.python = true;
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("To enable traceback see"));
  traces.stderr_tail = kTraceback;
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("To enable traceback see")));
  traces.stderr_tail.clear();
  traces.stderr_shown = true;  // ddprun has not seen it
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("To enable traceback see")));
}

TEST(FailureReport, StderrThatTheConsoleHasIsNotRepeated) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1)};
  outcome.failures[0].traces.stderr_tail = kTraceback;
  const std::string unseen = format_failure_report(outcome, kContext);
  EXPECT_THAT(unseen, HasSubstr("  traceback : in stderr\n  stderr    : last 4 lines\n    Traceback (most"));
  EXPECT_EQ(count(unseen, "ValueError: bad loss"), 1U);
  outcome.failures[0].traces.stderr_shown = true;
  const std::string seen = format_failure_report(outcome, kContext);
  EXPECT_THAT(seen, HasSubstr("  traceback : ValueError: bad loss (see above)\n---"));
  EXPECT_THAT(seen, Not(HasSubstr("stderr")));
  outcome.failures[0].traces.stderr_tail = "first\nout of luck\n\n";
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("  exitcode  : 1 (pid: 101)\n  stderr    : out of luck (last line; see above)\n---"));
}

TEST(FailureReport, StderrThatTheConsoleMayHaveMixedIsShownInOnePiece) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1), failure(2, 1)};
  for (RankFailure& each : outcome.failures) {
    each.traces.stderr_tail = kTraceback;
    each.traces.stderr_shown = true;
  }
  std::string text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "  File \"a.py\""), 1U);
  EXPECT_GT(text.find("  traceback : ValueError: bad loss (see above)"), text.find("Other Failures:"));
  // With -t its lines are labelled, and in a file.
  outcome.failures[0].traces.stderr_log = "/logs/1/stderr.log";
  text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "  File \"a.py\""), 0U);
  EXPECT_EQ(count(text, "  traceback : ValueError: bad loss (see above)"), 2U);
}

TEST(FailureReport, LogFilesAreNamed) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1), failure(2, 1)};
  outcome.failures[0].traces.stdout_log = "/logs/1/stdout.log";
  outcome.failures[0].traces.stderr_log = "/logs/1/stderr.log";
  outcome.failures[1].traces.stderr_log = "/logs/2/stderr.log";
  outcome.failures[1].traces.python = true;
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  stdout_log: /logs/1/stdout.log\n  stderr_log: /logs/1/stderr.log\n"));
  EXPECT_THAT(text, HasSubstr("  error_file: <N/A>\n  stderr_log: /logs/2/stderr.log\n"));
}

TEST(FailureReport, AnErrorFileWithoutATracebackStillGetsStderr) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1)};
  outcome.failures[0].traces = {.error_file = "e.json", .error_content = "{\"mess", .stderr_tail = "line"};
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  traceback : {\"mess\n  stderr    : last line\n    line\n"));
}

TEST(FailureReport, TheOomKillerIsNamed) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGKILL, true)};
  outcome.failures[0].traces.oom = "the kernel's OOM killer ended a process of this job";
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("  oom       : the kernel's OOM killer ended a process of this job\n"));
}

TEST(FailureReport, APmixServerThatDoesNotAnswerIsNamed) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1)};
  outcome.failures[0].traces.pmix_server = "ddprun's PMIx server on n1 has not answered for 7 s";
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("  pmix      : ddprun's PMIx server on n1 has not answered for 7 s\n"));
}

TEST(FailureReport, AnAbortHasItsMessageAndNoHint) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGTERM, true)};
  outcome.failures[0].abort = AbortCall{.status = 7, .message = "no data\nsecond line"};
  outcome.failures[0].end.reset();
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  pid       : 101\n  abort     : PMIx_Abort(7): no data\n  second line\n"));
  EXPECT_THAT(text, Not(HasSubstr("traceback")));
}

TEST(FailureReport, WithoutAnOomKillSigkillSaysWhereToLook) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGKILL, true)};
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("  oom       : no OOM kill was seen; 'dmesg'"));
  outcome.failures = {failure(1, SIGSEGV, true), failure(2, 1)};
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("oom")));
}

TEST(FailureReport, ARankThatHungSaysSoInsteadOfHintsAtSigkill) {
  JobOutcome outcome;
  outcome.failures = {failure(1, SIGKILL, true)};
  outcome.failures[0].hung = std::chrono::milliseconds(90'500);
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  hung      : no progress for 90.5 s, so ddprun killed it (--end-hung)\n"));
  EXPECT_THAT(text, Not(HasSubstr("oom")));
  EXPECT_THAT(format_restart_line(outcome, 0, 1, 3),
              HasSubstr("attempt 0 failed: rank 1 on node1 hung for 90.5 s and was killed; restarting"));
}

TEST(FailureReport, TheInterpreterIsNamedWhereAModuleIsMissing) {
  JobOutcome outcome;
  outcome.failures = {failure(0, 1)};
  RankTraces& traces = outcome.failures[0].traces;
  traces.python = true;
  traces.interpreter = "/usr/bin/python3 (from PATH; VIRTUAL_ENV is not set)";
  traces.stderr_tail =
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nModuleNotFoundError: No module named "
      "'torch'\n";
  EXPECT_THAT(format_failure_report(outcome, kContext),
              HasSubstr("  python    : /usr/bin/python3 (from PATH; VIRTUAL_ENV is not set)\n"));
  traces.stderr_tail = "ImportError: cannot import name 'x'\n";
  EXPECT_THAT(format_failure_report(outcome, kContext), HasSubstr("  python    : /usr/bin/python3"));
  traces.stderr_tail = "ValueError: bad loss\n";
  EXPECT_THAT(format_failure_report(outcome, kContext), Not(HasSubstr("python    :")));
}

TEST(FailureReport, FailuresThatLookAlikeAreOneBlock) {
  JobOutcome outcome;
  for (int rank = 0; rank < 8; ++rank) outcome.failures.push_back(failure(rank, 1));
  for (RankFailure& each : outcome.failures) each.traces.stderr_tail = "[rank]: no luck\n";
  outcome.failures[7].name.host = "node2";
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_EQ(count(text, "exitcode  : 1"), 2U);
  EXPECT_THAT(text, HasSubstr("  hosts     : node1, node2\n  ranks     : 1-7\n  exitcode  : 1 (pid: 101)\n"));
  outcome.failures[3].end->code = 5;
  const std::string three = format_failure_report(outcome, kContext);
  EXPECT_THAT(three, HasSubstr("  ranks     : 1, 2\n"));
  EXPECT_THAT(three, HasSubstr("  rank      : 3 (local_rank: 3)\n"));
  EXPECT_THAT(three, HasSubstr("  ranks     : 4-7\n"));
}

TEST(FailureReport, TheRootCauseIsTheGroupsVerdict) {
  JobOutcome outcome;
  outcome.failures = {failure(2, 1), failure(3, 1)};
  outcome.verdict = GroupVerdict{.ranks = {2}, .reporters = {0, 1, 3}, .has_failed = true};
  EXPECT_THAT(format_failure_report(outcome, kContext),
              testing::ContainsRegex(
                  "Root Cause \\(whom the errors of ranks 0, 1, 3 name\\):\n\\[0\\]:\n.*\n.*\n  rank      : 2 "));
  outcome.failures = {failure(3, 1), failure(0, 1)};
  outcome.verdict->has_failed = false;
  const std::string ended = format_failure_report(outcome, kContext);
  EXPECT_THAT(ended, HasSubstr("\n[0]:\n  rank      : 2\n  end       : did not fail by itself"));
  EXPECT_THAT(ended, HasSubstr("Other Failures:\n[1]:"));
  EXPECT_THAT(ended, HasSubstr("  rank      : 3 "));
}

TEST(FailureReport, OfALongTracebackTheBeginningAndTheEndAreShown) {
  std::string callstack = R"(Traceback (most recent call last):\n)";
  for (int i = 0; i < 5000; ++i) callstack += R"(  File \"a.py\", line 1\n)";
  JobOutcome outcome;
  outcome.failures = {failure(0, 1)};
  outcome.failures[0].traces.error_content =
      R"({"message": {"message": "m", "extraInfo": {"py_callstack": ")" + callstack + R"(ValueError: the end\n"}}})";
  const std::string text = format_failure_report(outcome, kContext);
  EXPECT_THAT(text, HasSubstr("  traceback : Traceback (most recent call last):\n    File"));
  EXPECT_THAT(text, HasSubstr(" bytes left out ...\n"));
  EXPECT_THAT(text, HasSubstr("\n  ValueError: the end\n---"));
  EXPECT_LT(text.size(), 40'000U);
}

}  // namespace
}  // namespace ddp::launcher::test
