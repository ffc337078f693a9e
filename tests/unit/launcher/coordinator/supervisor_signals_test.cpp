// Signals to ddprun and the job's time limit: what the ranks get, and the job's status.
#include "supervisor_fixture.hpp"

namespace ddp::launcher::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kWorkers = SignalOrder::Target::workers;

TEST_F(SupervisorTest, ASignalEndsTheJobWithItsNumber) {
  EXPECT_THAT(supervisor_.signal_received(SIGHUP, at(seconds(0))), ElementsAre(to_groups(SIGHUP), to_groups(SIGCONT)));
  for (int rank = 0; rank < 3; ++rank) end(rank, exited(rank), seconds(1));
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGHUP);
  EXPECT_THAT(supervisor_.outcome().failures, IsEmpty());
  EXPECT_EQ(supervisor_.outcome().ended_on_request, 3);
}

TEST_F(SupervisorTest, ASignalAfterAFailureKeepsTheFailuresStatusAndCutsTheGraceTime) {
  end(1, exited(85), seconds(0));
  EXPECT_THAT(supervisor_.signal_received(SIGTERM, at(seconds(1))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(31)).steady);
  EXPECT_EQ(supervisor_.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, OtherSignalsDuringTheShutdownArePassedOnAndDoNotProlongIt) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  EXPECT_THAT(supervisor_.signal_received(SIGTERM, at(seconds(1))), IsEmpty()) << "for the same cause";
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

TEST_F(SupervisorTest, TheTimeLimitTerminatesWithItsOwnStatus) {
  EXPECT_THAT(supervisor_.job_timed_out(at(seconds(5))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_THAT(supervisor_.job_timed_out(at(seconds(6))), IsEmpty());
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(35)).steady);
  for (int rank = 0; rank < 3; ++rank) end(rank, died(SIGTERM), seconds(6));
  EXPECT_EQ(supervisor_.outcome().exit_status(), 124);
  EXPECT_EQ(supervisor_.outcome().ended_on_request, 3);
  EXPECT_THAT(supervisor_.outcome().failures, IsEmpty());
}

TEST_F(SupervisorTest, OfSignalAndTimeLimitTheFirstCounts) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  supervisor_.job_timed_out(at(seconds(1)));
  EXPECT_FALSE(supervisor_.outcome().timed_out);
  Supervisor other{{{.rank = 0, .local_rank = 0, .pid = 10}}, limits(), signals()};
  other.job_timed_out(at(seconds(0)));
  EXPECT_THAT(other.signal_received(SIGINT, at(seconds(1))), ElementsAre(to_groups(SIGINT)));
  EXPECT_EQ(other.outcome().forwarded_signal, 0);
  EXPECT_EQ(other.outcome().exit_status(), 124);
}

TEST_F(SupervisorTest, WhatTheUserDoesAfterTheEndOnlyForbidsARestart) {
  for (int rank = 0; rank < 3; ++rank) end(rank, exited(0), seconds(0));
  EXPECT_THAT(supervisor_.signal_received(SIGTERM, at(seconds(1))), IsEmpty());
  EXPECT_THAT(supervisor_.job_timed_out(at(seconds(1))), IsEmpty());
  EXPECT_TRUE(supervisor_.outcome().success());

  Supervisor failed{{{.rank = 0, .local_rank = 0, .pid = 10}}, limits(), signals()};
  failed.rank_ended(0, exited(85), {}, at(seconds(0)));
  EXPECT_TRUE(failed.outcome().failed_by_itself());
  EXPECT_THAT(failed.signal_received(SIGTERM, at(seconds(1))), IsEmpty());
  EXPECT_FALSE(failed.outcome().failed_by_itself());
  EXPECT_EQ(failed.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, SignalsWithoutAMeaningDoNothing) {
  EXPECT_THAT(supervisor_.signal_received(SIGWINCH, at(seconds(0))), IsEmpty());
  EXPECT_EQ(supervisor_.outcome().forwarded_signal, 0);
  EXPECT_FALSE(supervisor_.next_deadline());
}

TEST_F(SupervisorTest, AnEndingSignalEndsAlsoWhereItIsForwarded) {
  Supervisor other{{{.rank = 0, .local_rank = 0, .pid = 10}}, limits(), {.ending = {SIGUSR1}, .forwarded = {SIGUSR1}}};
  EXPECT_THAT(other.signal_received(SIGUSR1, at(seconds(0))), ElementsAre(to_groups(SIGUSR1), to_groups(SIGCONT)));
  EXPECT_THAT(other.signal_received(SIGTERM, at(seconds(0))), IsEmpty());
  EXPECT_EQ(other.outcome().exit_status(), 128 + SIGUSR1);
}

// ---- another generation ----------------

TEST_F(SupervisorTest, ForAnotherGenerationAllRanksEndAndNoneHasFailed) {
  EXPECT_THAT(supervisor_.resize(SIGTERM, at(seconds(0))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_THAT(supervisor_.resize(SIGTERM, at(seconds(1))), IsEmpty());
  end(0, exited(0), seconds(1));
  end(1, exited(1), seconds(1));
  end(2, died(SIGTERM), seconds(1));
  EXPECT_TRUE(supervisor_.done());
  const JobOutcome& outcome = supervisor_.outcome();
  EXPECT_TRUE(outcome.resized);
  EXPECT_FALSE(outcome.success());
  EXPECT_THAT(outcome.failures, IsEmpty());
  EXPECT_EQ(outcome.root_cause(), RootCause::none);
  EXPECT_EQ(outcome.exit_status(), 1) << "if no other generation follows";
}

TEST_F(SupervisorTest, RanksThatDoNotEndForAnotherGenerationAreKilled) {
  supervisor_.resize(SIGTERM, at(seconds(0)));
  EXPECT_THAT(supervisor_.time_passed(at(seconds(30))), ElementsAre(to_groups(SIGKILL)));
}

TEST_F(SupervisorTest, WhatHasFailedOrEndedIsNotResized) {
  end(2, exited(85), seconds(0));
  EXPECT_THAT(supervisor_.resize(SIGTERM, at(seconds(1))), IsEmpty());
  EXPECT_FALSE(supervisor_.outcome().resized);
  end(0, exited(0), seconds(1));
  end(1, exited(0), seconds(1));
  EXPECT_THAT(supervisor_.resize(SIGTERM, at(seconds(1))), IsEmpty());
  EXPECT_EQ(supervisor_.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, ASignalThatEndsTheJobMeanwhileIsItsEnd) {
  supervisor_.resize(SIGTERM, at(seconds(0)));
  supervisor_.signal_received(SIGINT, at(seconds(1)));
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGINT);
  EXPECT_FALSE(supervisor_.outcome().failed_by_itself());
}

}  // namespace
}  // namespace ddp::launcher::test
