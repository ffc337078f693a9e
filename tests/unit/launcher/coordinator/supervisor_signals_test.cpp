// Signals to ddprun and the job's time limit: what the ranks get, and the job's status.
#include "supervisor_fixture.hpp"

namespace ddp::launcher::test {
namespace {

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
  EXPECT_THAT(supervisor_.resize({}, at(seconds(0))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_THAT(supervisor_.resize({}, at(seconds(1))), IsEmpty());
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

TEST_F(SupervisorTest, RanksThatHandleASignalForAnotherGenerationHaveAGrace) {
  const ResizeManner manner{.how = ResizeManner::How::signal, .signal = SIGUSR2, .grace = seconds(60)};
  EXPECT_THAT(supervisor_.resize(manner, at(seconds(0))),
              ElementsAre(SignalOrder{.target = SignalOrder::Target::workers, .signal = SIGUSR2}));
  EXPECT_THAT(supervisor_.resize(manner, at(seconds(1))), IsEmpty());
  EXPECT_THAT(end(0, exited(0), seconds(2)), IsEmpty());
  EXPECT_THAT(end(1, died(SIGUSR2), seconds(2)), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(milliseconds(59'999))), IsEmpty());
  EXPECT_THAT(supervisor_.time_passed(at(seconds(60))), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_THAT(supervisor_.time_passed(at(seconds(90))), ElementsAre(to_groups(SIGKILL)));
  end(2, died(SIGKILL), seconds(90));
  EXPECT_TRUE(supervisor_.outcome().resized);
  EXPECT_THAT(supervisor_.outcome().failures, IsEmpty());
}

TEST_F(SupervisorTest, ARankThatEndsForAnotherGenerationTakesTheOthersAlong) {
  RankEnd restarts = exited(0);
  restarts.restarts = true;
  EXPECT_THAT(end(0, restarts, seconds(0)), IsEmpty());
  EXPECT_TRUE(supervisor_.resizing());
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(120)).steady);
  EXPECT_THAT(end(1, restarts, seconds(1)), IsEmpty());
  EXPECT_THAT(end(2, exited(0), seconds(1)), IsEmpty());
  EXPECT_TRUE(supervisor_.done());
  EXPECT_TRUE(supervisor_.outcome().resized);
  EXPECT_EQ(supervisor_.outcome().ended_on_request, 3);
}

TEST_F(SupervisorTest, WithFinishRanksMayEndTheJobWithSuccessInTheGrace) {
  for (const bool one_asks : {false, true}) {
    Supervisor supervisor{
        {{.rank = 0, .local_rank = 0, .pid = 10, .host = "n0"}, {.rank = 1, .local_rank = 1, .pid = 11, .host = "n0"}},
        limits(),
        signals()};
    supervisor.resize({.how = ResizeManner::How::finish}, at(seconds(0)));
    supervisor.rank_ended(0, exited(0), {}, at(seconds(1)));
    RankEnd last = exited(0);
    last.restarts = one_asks;
    supervisor.rank_ended(1, last, {}, at(seconds(2)));
    EXPECT_TRUE(supervisor.done());
    EXPECT_EQ(supervisor.outcome().resized, one_asks);
    EXPECT_EQ(supervisor.outcome().success(), !one_asks);
  }
}

TEST_F(SupervisorTest, ARankThatFailsOrAnythingElseCutsTheGraceShort) {
  const ResizeManner manner{.how = ResizeManner::How::finish};
  const std::vector<std::function<SignalOrders(Supervisor&)>> events{
      [](Supervisor& each) { return each.rank_ended(1, exited(1), {}, at(seconds(1))); },
      [](Supervisor& each) { return each.rank_aborted(1, {.status = 3, .message = "no"}, at(seconds(1))); },
      [](Supervisor& each) { return each.node_failed(lost(1, 1, seconds(1)), 2, at(seconds(1))); },
      [](Supervisor& each) { return each.signal_received(SIGTERM, at(seconds(1))); },
      [](Supervisor& each) { return each.job_timed_out(at(seconds(1))); }};
  for (const auto& event : events) {
    Supervisor supervisor{{{.rank = 0, .local_rank = 0, .pid = 10, .host = "n0"},
                           {.rank = 1, .local_rank = 1, .pid = 11, .host = "n0"},
                           {.rank = 2, .local_rank = 0, .pid = 10, .host = "n1"}},
                          limits(),
                          signals()};
    EXPECT_THAT(supervisor.resize(manner, at(seconds(0))), IsEmpty());
    EXPECT_THAT(event(supervisor), ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
    EXPECT_THAT(supervisor.outcome().failures, IsEmpty());
  }
}

TEST_F(SupervisorTest, ARankOfAFailingJobDoesNotMakeItAnotherGeneration) {
  end(2, exited(85), seconds(0));
  RankEnd restarts = exited(0);
  restarts.restarts = true;
  end(0, restarts, seconds(1));
  EXPECT_FALSE(supervisor_.outcome().resized);
  EXPECT_EQ(supervisor_.outcome().root_cause(), RootCause::rank);
}

TEST_F(SupervisorTest, RanksThatDoNotEndForAnotherGenerationAreKilled) {
  supervisor_.resize({}, at(seconds(0)));
  EXPECT_THAT(supervisor_.time_passed(at(seconds(30))), ElementsAre(to_groups(SIGKILL)));
}

TEST_F(SupervisorTest, WhatHasFailedOrEndedIsNotResized) {
  end(2, exited(85), seconds(0));
  EXPECT_THAT(supervisor_.resize({}, at(seconds(1))), IsEmpty());
  EXPECT_FALSE(supervisor_.outcome().resized);
  end(0, exited(0), seconds(1));
  end(1, exited(0), seconds(1));
  EXPECT_THAT(supervisor_.resize({}, at(seconds(1))), IsEmpty());
  EXPECT_EQ(supervisor_.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, ASignalThatEndsTheJobMeanwhileIsItsEnd) {
  supervisor_.resize({}, at(seconds(0)));
  supervisor_.signal_received(SIGINT, at(seconds(1)));
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGINT);
  EXPECT_FALSE(supervisor_.outcome().failed_by_itself());
}

}  // namespace
}  // namespace ddp::launcher::test
