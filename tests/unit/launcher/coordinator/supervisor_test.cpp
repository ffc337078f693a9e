// Ranks that end, fail, abort or stop: when the others are ended, and what of it is in the outcome.
#include "supervisor_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST_F(SupervisorTest, AllSucceed) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(supervisor_.done());
    EXPECT_THAT(end(rank, exited(0), seconds(rank)), IsEmpty());
    EXPECT_FALSE(supervisor_.next_deadline());  // a rank that ends early with success is no failure
  }
  EXPECT_TRUE(supervisor_.done());
  EXPECT_TRUE(supervisor_.outcome().success());
}

TEST_F(SupervisorTest, FailureThenGraceThenTermThenKill) {
  EXPECT_THAT(end(1, exited(85), seconds(0)), IsEmpty());
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(2)).steady);
  EXPECT_THAT(supervisor_.time_passed(at(milliseconds(1999))), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(seconds(2))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  end(0, died(SIGTERM), seconds(3));
  EXPECT_THAT(supervisor_.time_passed(at(milliseconds(31'999))), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(seconds(32))), ElementsAre(to_groups(SIGKILL)));
  EXPECT_FALSE(supervisor_.done());
  end(2, died(SIGKILL), seconds(32));
  EXPECT_TRUE(supervisor_.done());

  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 1U);
  EXPECT_EQ(outcome.failures[0].name.rank, 1);
  EXPECT_EQ(outcome.ended_on_request, 1);
  EXPECT_EQ(outcome.killed, 1);
  EXPECT_EQ(outcome.exit_status(), 85);
}

TEST_F(SupervisorTest, FailuresWithinTheGraceTimeAreFailuresOfTheirOwn) {
  end(2, died(SIGSEGV), seconds(0));
  end(0, exited(1), seconds(1));
  end(1, exited(0), seconds(1));
  EXPECT_TRUE(supervisor_.done());
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 2U);
  EXPECT_EQ(outcome.failures[0].name.rank, 2);
  EXPECT_EQ(outcome.failures[1].name.rank, 0);
  EXPECT_EQ(outcome.ended_on_request, 0);
  EXPECT_EQ(outcome.exit_status(), 128 + SIGSEGV);
}

TEST_F(SupervisorTest, ACrashComesBeforeFailuresThatWereSeenJustBeforeIt) {
  end(0, exited(3), seconds(0));
  end(2, died(SIGKILL), milliseconds(20));
  end(1, exited(4), milliseconds(30));
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 3U);
  EXPECT_EQ(outcome.failures[0].name.rank, 2);
  EXPECT_EQ(outcome.failures[1].name.rank, 0);
  EXPECT_EQ(outcome.failures[2].name.rank, 1);
  EXPECT_EQ(outcome.exit_status(), 128 + SIGKILL);
}

TEST_F(SupervisorTest, ACrashIsFoundAlsoWhenTheOthersAreBeingEnded) {
  end(0, exited(3), seconds(0));
  supervisor_.rank_aborted(1, {.status = 7, .message = ""}, at(milliseconds(5)));  // ends the grace time
  end(2, died(SIGKILL), milliseconds(20));
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 3U);
  EXPECT_EQ(outcome.failures[0].name.rank, 2);
  EXPECT_EQ(outcome.ended_on_request, 0);
}

TEST_F(SupervisorTest, WhatIsNoCauseOfEarlierFailuresComesAfterThem) {
  end(0, exited(3), seconds(0));
  end(1, died(SIGABRT), milliseconds(20));   // an uncaught exception
  end(2, died(SIGKILL), milliseconds(300));  // too late
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcome.failures[static_cast<std::size_t>(i)].name.rank, i);
  EXPECT_EQ(outcome.exit_status(), 3);
}

TEST_F(SupervisorTest, ASecondFailureDoesNotProlongTheGraceTime) {
  end(2, exited(1), seconds(0));
  end(0, exited(1), milliseconds(1500));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(2)).steady);
}

TEST_F(SupervisorTest, ARankStoppedBeforeTheFailureIsNamed) {
  supervisor_.rank_stopped(0, SIGSTOP, at(seconds(0)));
  supervisor_.rank_stopped(2, SIGTSTP, at(seconds(1)));
  supervisor_.rank_continued(2);
  end(1, exited(5), milliseconds(8100));
  supervisor_.rank_continued(0);  // by ddprun's own SIGCONT
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.stopped.size(), 1U);
  EXPECT_EQ(outcome.stopped[0].name.rank, 0);
  EXPECT_EQ(outcome.stopped[0].signal, SIGSTOP);
  EXPECT_EQ(outcome.stopped[0].before_failure, milliseconds(8100));
  EXPECT_EQ(outcome.exit_status(), 5);
}

TEST_F(SupervisorTest, ARankStoppedAfterTheFailureIsNotBlamed) {
  end(1, exited(5), seconds(0));
  supervisor_.rank_stopped(0, SIGSTOP, at(seconds(1)));
  end(2, exited(5), seconds(1));
  EXPECT_THAT(supervisor_.outcome().stopped, IsEmpty());
}

TEST_F(SupervisorTest, AnAbortEndsTheJobAtOnceWithItsStatus) {
  EXPECT_THAT(supervisor_.rank_aborted(1, {.status = 7, .message = "over"}, at(seconds(0))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  for (int rank = 0; rank < 3; ++rank) end(rank, died(SIGTERM), seconds(1));
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 1U);
  EXPECT_EQ(outcome.failures[0].end->code, SIGTERM);
  EXPECT_EQ(outcome.ended_on_request, 2);
  EXPECT_EQ(outcome.exit_status(), 7);
}

TEST_F(SupervisorTest, WhatCannotBeKilledIsGivenUpAndNamed) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  end(0, exited(0), seconds(0));
  end(1, exited(0), seconds(0));
  supervisor_.time_passed(at(seconds(30)));
  EXPECT_FALSE(supervisor_.done());
  supervisor_.time_passed(at(seconds(40)));
  EXPECT_TRUE(supervisor_.done());
  ASSERT_EQ(supervisor_.outcome().unkillable.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().unkillable[0].rank, 2);
}

TEST_F(SupervisorTest, AnEndIsCountedOnce) {
  end(0, exited(0), seconds(0));
  end(0, exited(0), seconds(0));
  end(1, exited(0), seconds(0));
  EXPECT_FALSE(supervisor_.done());
}

TEST_F(SupervisorTest, RanksThatDoNotExistAreRefused) {
  EXPECT_THROW(end(3, exited(0), seconds(0)), std::out_of_range);
  EXPECT_THROW(supervisor_.rank_continued(-1), std::out_of_range);
  EXPECT_THROW(supervisor_.node_failed(lost(1, 5, seconds(0)), 2, at(seconds(0))), std::out_of_range);
}

TEST_F(SupervisorTest, ProcessesAreNamedBeforeOrAfterWhatIsSeenOfThem) {
  supervisor_.rank_started(0, 100);
  supervisor_.rank_stopped(1, SIGSTOP, at(seconds(0)));
  end(0, exited(1), seconds(1));
  end(2, exited(1), seconds(1));
  supervisor_.rank_started(1, 101);
  supervisor_.rank_started(2, 102);
  const JobOutcome& outcome = supervisor_.outcome();
  EXPECT_EQ(outcome.failures.at(0).name.pid, 100);
  EXPECT_EQ(outcome.failures.at(1).name.pid, 102);
  EXPECT_EQ(outcome.stopped.at(0).name.pid, 101);
  EXPECT_THROW(supervisor_.rank_started(3, 5), std::out_of_range);
}

TEST_F(SupervisorTest, RanksThatEndedWellBeforeTheFirstFailureAreNamedAndAreNoFailures) {
  end(2, exited(0), seconds(1));
  end(0, exited(0), milliseconds(4150));
  end(1, exited(7), milliseconds(4200));
  const JobOutcome& outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.early.size(), 2U);
  EXPECT_EQ(outcome.early[0].name.rank, 2);
  EXPECT_EQ(outcome.early[0].name.host, "n1");
  EXPECT_EQ(outcome.early[0].before_failure, milliseconds(3200));
  EXPECT_EQ(outcome.early[0].time, at(seconds(1)).wall);
  EXPECT_EQ(outcome.early[1].name.rank, 0);
  EXPECT_EQ(outcome.early[1].before_failure, milliseconds(50));
  EXPECT_EQ(outcome.failures.size(), 1U);
  EXPECT_EQ(outcome.root_cause(), RootCause::rank);
  EXPECT_EQ(outcome.exit_status(), 7);
  supervisor_.rank_started(2, 4711);
  EXPECT_EQ(supervisor_.outcome().early[0].name.pid, 4711);
}

TEST_F(SupervisorTest, WhoEndsWellAfterTheFirstFailureIsNotEarly) {
  end(1, exited(7), seconds(1));
  end(0, exited(0), milliseconds(1100));
  end(2, exited(1), milliseconds(1200));
  EXPECT_THAT(supervisor_.outcome().early, IsEmpty());
}

TEST_F(SupervisorTest, WhoEndsWellLongBeforeASignalOrATimeoutEndsTheOthersIsEarly) {
  Supervisor timed = supervisor_;
  end(0, exited(0), seconds(1));
  end(2, exited(0), seconds(9));  // the signal may have reached it, too
  supervisor_.signal_received(SIGTERM, at(seconds(10)));
  ASSERT_EQ(supervisor_.outcome().early.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().early[0].name.rank, 0);
  EXPECT_EQ(supervisor_.outcome().early[0].before_failure, seconds(9));
  EXPECT_EQ(supervisor_.outcome().root_cause(), RootCause::signal);
  timed.rank_ended(1, exited(0), {}, at(seconds(1)));
  timed.job_timed_out(at(seconds(61)));
  ASSERT_EQ(timed.outcome().early.size(), 1U);
  EXPECT_EQ(timed.outcome().early[0].before_failure, seconds(60));
}

TEST_F(SupervisorTest, ARankThatAbortsAndEndsWellIsNotEarly) {
  end(0, exited(0), seconds(1));
  supervisor_.rank_aborted(0, {.status = 7, .message = "over"}, at(seconds(1)));
  EXPECT_THAT(supervisor_.outcome().early, IsEmpty());
}

TEST_F(SupervisorTest, TracesOfFailuresAreKept) {
  supervisor_.rank_ended(0, exited(0), {.error_file = "a", .error_content = "A"}, at(seconds(0)));
  supervisor_.rank_ended(1, exited(1), {.error_file = "b", .error_content = "B", .stderr_tail = "t"}, at(seconds(0)));
  ASSERT_EQ(supervisor_.outcome().failures.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().failures[0].traces.error_content, "B");
  EXPECT_EQ(supervisor_.outcome().failures[0].traces.stderr_tail, "t");
  EXPECT_EQ(supervisor_.outcome().failures[0].name.host, "n0");
}

TEST_F(SupervisorTest, TracesOfAnAbortComeWithTheEnd) {
  supervisor_.rank_aborted(2, {.status = 7, .message = "over"}, at(seconds(0)));
  supervisor_.rank_ended(2, died(SIGTERM), {.stderr_tail = "t"}, at(seconds(1)));
  EXPECT_EQ(supervisor_.outcome().failures.at(0).traces.stderr_tail, "t");
}

TEST_F(SupervisorTest, AnAbortThatIsHeardAfterTheEndKeepsItsStatus) {
  Supervisor one{{{.rank = 0, .local_rank = 0, .pid = 10}}, limits(), signals()};
  one.rank_ended(0, exited(1), {}, at(seconds(0)));
  one.rank_aborted(0, {.status = 7, .message = "over"}, at(seconds(0)));
  EXPECT_EQ(one.outcome().failures.size(), 1U);
  EXPECT_EQ(one.outcome().exit_status(), 7);
}

TEST_F(SupervisorTest, TracesHaveALimitInAll) {
  constexpr std::size_t kEach = std::size_t{1} << 18U;
  constexpr int kRanks = 300;  // 75 MiB
  std::vector<RankName> names;
  for (int rank = 0; rank < kRanks; ++rank) names.push_back({.rank = rank, .local_rank = rank, .pid = 10 + rank});
  Supervisor many{names, limits(), signals()};
  for (int rank = 0; rank < kRanks; ++rank) {
    many.rank_ended(rank, exited(1), {.error_file = "f", .error_content = std::string(kEach, 'x')}, at(seconds(0)));
  }
  std::size_t all = 0;
  for (const RankFailure& failure : many.outcome().failures) {
    all += failure.traces.error_content.size();
    EXPECT_EQ(failure.traces.error_file, "f");
  }
  EXPECT_EQ(many.outcome().failures.size(), 300U);
  EXPECT_EQ(all, kMaxTraceBytes);
}

}  // namespace
}  // namespace ddp::launcher::test
