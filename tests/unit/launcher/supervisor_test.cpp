// Every course that a job can take, without processes and without waiting.
#include "agent/supervisor.hpp"

#include <signal.h>

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kGroups = SignalOrder::Target::groups;
constexpr auto kWorkers = SignalOrder::Target::workers;

class SupervisorTest : public testing::Test {
 protected:
  static Moment at(milliseconds since_start) {
    return {.steady = Deadline::Clock::time_point{seconds(1000)} + since_start,
            .wall = std::chrono::system_clock::time_point{seconds(5000)} + since_start};
  }
  static RankEnd exited(int code) { return {.code = code, .by_signal = false, .core_dumped = false, .time = {}}; }
  static RankEnd died(int signal) { return {.code = signal, .by_signal = true, .core_dumped = false, .time = {}}; }
  static SignalOrder to_groups(int signal) { return {.target = kGroups, .signal = signal}; }

  Supervisor supervisor_{{{.rank = 0, .local_rank = 0, .pid = 10},
                          {.rank = 1, .local_rank = 1, .pid = 11},
                          {.rank = 2, .local_rank = 2, .pid = 12}},
                         {.failure_grace = seconds(2), .shutdown_timeout = seconds(30), .kill_patience = seconds(10)}};
};

TEST_F(SupervisorTest, AllSucceed) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(supervisor_.done());
    EXPECT_THAT(supervisor_.rank_ended(rank, exited(0), at(seconds(rank))), IsEmpty());
    EXPECT_FALSE(supervisor_.next_deadline());  // a rank that ends early with success is no failure
  }
  EXPECT_TRUE(supervisor_.done());
  EXPECT_TRUE(supervisor_.outcome().success());
}

TEST_F(SupervisorTest, FailureThenGraceThenTermThenKill) {
  EXPECT_THAT(supervisor_.rank_ended(1, exited(85), at(seconds(0))), IsEmpty());
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(2)).steady);
  EXPECT_THAT(supervisor_.time_passed(at(milliseconds(1999))), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(seconds(2))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  supervisor_.rank_ended(0, died(SIGTERM), at(seconds(3)));
  EXPECT_THAT(supervisor_.time_passed(at(milliseconds(31'999))), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(seconds(32))), ElementsAre(to_groups(SIGKILL)));
  EXPECT_FALSE(supervisor_.done());
  supervisor_.rank_ended(2, died(SIGKILL), at(seconds(32)));
  EXPECT_TRUE(supervisor_.done());

  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 1U);
  EXPECT_EQ(outcome.failures[0].name.rank, 1);
  EXPECT_EQ(outcome.ended_on_request, 1);
  EXPECT_EQ(outcome.killed, 1);
  EXPECT_EQ(outcome.exit_status(), 85);
}

TEST_F(SupervisorTest, FailuresWithinTheGraceTimeAreFailuresOfTheirOwn) {
  supervisor_.rank_ended(2, died(SIGSEGV), at(seconds(0)));
  supervisor_.rank_ended(0, exited(1), at(seconds(1)));
  supervisor_.rank_ended(1, exited(0), at(seconds(1)));
  EXPECT_TRUE(supervisor_.done());
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 2U);
  EXPECT_EQ(outcome.failures[0].name.rank, 2);
  EXPECT_EQ(outcome.failures[1].name.rank, 0);
  EXPECT_EQ(outcome.ended_on_request, 0);
  EXPECT_EQ(outcome.exit_status(), 128 + SIGSEGV);
}

TEST_F(SupervisorTest, ASecondFailureDoesNotProlongTheGraceTime) {
  supervisor_.rank_ended(2, exited(1), at(seconds(0)));
  supervisor_.rank_ended(0, exited(1), at(milliseconds(1500)));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(2)).steady);
}

TEST_F(SupervisorTest, ARankStoppedBeforeTheFailureIsNamed) {
  supervisor_.rank_stopped(0, SIGSTOP, at(seconds(0)));
  supervisor_.rank_stopped(2, SIGTSTP, at(seconds(1)));
  supervisor_.rank_continued(2);
  supervisor_.rank_ended(1, exited(5), at(milliseconds(8100)));
  supervisor_.rank_continued(0);  // by ddprun's own SIGCONT
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.stopped.size(), 1U);
  EXPECT_EQ(outcome.stopped[0].name.rank, 0);
  EXPECT_EQ(outcome.stopped[0].signal, SIGSTOP);
  EXPECT_EQ(outcome.stopped[0].before_failure, milliseconds(8100));
  EXPECT_EQ(outcome.exit_status(), 5);
}

TEST_F(SupervisorTest, ARankStoppedAfterTheFailureIsNotBlamed) {
  supervisor_.rank_ended(1, exited(5), at(seconds(0)));
  supervisor_.rank_stopped(0, SIGSTOP, at(seconds(1)));
  supervisor_.rank_ended(2, exited(5), at(seconds(1)));
  EXPECT_THAT(supervisor_.outcome().stopped, IsEmpty());
}

TEST_F(SupervisorTest, ASignalEndsTheJobWithItsNumber) {
  EXPECT_THAT(supervisor_.signal_received(SIGHUP, at(seconds(0))), ElementsAre(to_groups(SIGHUP), to_groups(SIGCONT)));
  for (int rank = 0; rank < 3; ++rank) supervisor_.rank_ended(rank, exited(rank), at(seconds(1)));
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGHUP);
  EXPECT_THAT(supervisor_.outcome().failures, IsEmpty());
  EXPECT_EQ(supervisor_.outcome().ended_on_request, 3);
}

TEST_F(SupervisorTest, ASignalAfterAFailureKeepsTheFailuresStatusAndCutsTheGraceTime) {
  supervisor_.rank_ended(1, exited(85), at(seconds(0)));
  EXPECT_THAT(supervisor_.signal_received(SIGTERM, at(seconds(1))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(31)).steady);
  EXPECT_EQ(supervisor_.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, OtherSignalsDuringTheShutdownArePassedOnAndDoNotProlongIt) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  EXPECT_THAT(supervisor_.signal_received(SIGTERM, at(seconds(5))), ElementsAre(to_groups(SIGTERM)));
  EXPECT_THAT(supervisor_.signal_received(SIGINT, at(seconds(6))), ElementsAre(to_groups(SIGINT)));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(30)).steady);
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGTERM);
}

TEST_F(SupervisorTest, ASecondInterruptKills) {
  supervisor_.signal_received(SIGINT, at(seconds(0)));
  EXPECT_THAT(supervisor_.signal_received(SIGINT, at(milliseconds(10))), ElementsAre(to_groups(SIGKILL)));
  EXPECT_THAT(supervisor_.signal_received(SIGINT, at(milliseconds(20))), IsEmpty());
}

TEST_F(SupervisorTest, UserSignalsGoToTheWorkersAndChangeNothing) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    EXPECT_THAT(supervisor_.signal_received(signal, at(seconds(0))),
                ElementsAre(SignalOrder{.target = kWorkers, .signal = signal}));
  }
  EXPECT_FALSE(supervisor_.next_deadline());
  EXPECT_EQ(supervisor_.outcome().forwarded_signal, 0);
}

TEST_F(SupervisorTest, AnAbortEndsTheJobAtOnceWithItsStatus) {
  EXPECT_THAT(supervisor_.rank_aborted(1, {.status = 7, .message = "over"}, at(seconds(0))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  for (int rank = 0; rank < 3; ++rank) supervisor_.rank_ended(rank, died(SIGTERM), at(seconds(1)));
  const JobOutcome outcome = supervisor_.outcome();
  ASSERT_EQ(outcome.failures.size(), 1U);
  EXPECT_EQ(outcome.failures[0].end->code, SIGTERM);
  EXPECT_EQ(outcome.ended_on_request, 2);
  EXPECT_EQ(outcome.exit_status(), 7);
}

TEST_F(SupervisorTest, WhatCannotBeKilledIsGivenUpAndNamed) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  supervisor_.rank_ended(0, exited(0), at(seconds(0)));
  supervisor_.rank_ended(1, exited(0), at(seconds(0)));
  supervisor_.time_passed(at(seconds(30)));
  EXPECT_FALSE(supervisor_.done());
  supervisor_.time_passed(at(seconds(40)));
  EXPECT_TRUE(supervisor_.done());
  ASSERT_EQ(supervisor_.outcome().unkillable.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().unkillable[0].rank, 2);
}

TEST_F(SupervisorTest, AnEndIsCountedOnce) {
  supervisor_.rank_ended(0, exited(0), at(seconds(0)));
  supervisor_.rank_ended(0, exited(0), at(seconds(0)));
  supervisor_.rank_ended(1, exited(0), at(seconds(0)));
  EXPECT_FALSE(supervisor_.done());
}

}  // namespace
}  // namespace ddp::launcher
