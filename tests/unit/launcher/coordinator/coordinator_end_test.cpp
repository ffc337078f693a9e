// The end of a job comes in time whatever a node does, and names those that do not answer.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorEnd, ANodeThatDoesNotAnswerSigkillIsGivenUpAndNamed) {
  CoordinatorJob job;
  job.run();
  job.coordinator().signal_received(SIGTERM, false);
  job.pass(30s);
  job.end_ranks(0, 1);
  job.forget_all();
  job.pass(2400ms);
  EXPECT_TRUE(job.connected(1));
  job.pass(100ms);
  EXPECT_FALSE(job.connected(1));
  EXPECT_THAT(job.heard_texts(0), ElementsAre(HasSubstr("EndAttempt")));
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 143"));
  const JobOutcome& outcome = job.coordinator().outcome();
  EXPECT_THAT(outcome.silent, ElementsAre("b"));
  EXPECT_THAT(outcome.unkillable, IsEmpty());
  EXPECT_EQ(outcome.lost, kRanksPerNode);
}

TEST(CoordinatorEnd, ANodeThatAnswersHasRanksThatCannotBeKilled) {
  CoordinatorJob job;
  job.run();
  job.coordinator().signal_received(SIGTERM, false);
  job.pass(30s);
  job.end_ranks(0, 1);
  job.say(1, rank_ended(0, 1));
  job.pass(2500ms);
  EXPECT_TRUE(job.connected(1));
  EXPECT_THAT(job.coordinator().outcome().silent, IsEmpty());
  ASSERT_EQ(job.coordinator().outcome().unkillable.size(), 1U);
  EXPECT_EQ(job.coordinator().outcome().unkillable[0].host, "b");
}

TEST(CoordinatorEnd, AFailureNamesASilentNodeAmongTheFailures) {
  CoordinatorJob job;
  job.run();
  job.say(0, rank_ended(0, 7));
  job.pass(0ms);
  job.pass(30s);
  job.say(0, rank_ended(1, 7));
  job.pass(2500ms);
  job.forget_all();
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 7"));
  ASSERT_EQ(job.coordinator().outcome().nodes.size(), 1U);
  EXPECT_EQ(job.coordinator().outcome().nodes[0].message,
            "ddprun's agent on b (pid 7) does not answer; its processes may still be running");
  EXPECT_THAT(job.coordinator().outcome().silent, IsEmpty()) << "it is named already";
}

/// A rank of node a fails, after a second in which node b was silent, or from which on it is. False where this process
/// did not run for a while before the failure: what others sent meanwhile is unknown to it, so it cannot tell.
bool fail_beside_a_silent_node(CoordinatorJob& job, bool silent_first) {
  constexpr auto kBeat = 50ms;
  job.options.peers = {.beat = kBeat, .peer_timeout = 2s, .answer = 500ms};
  job.run();
  const auto begin = Deadline::Clock::now();
  auto last = begin;
  bool ran = true;
  const auto note_turn = [&] {
    const auto now = Deadline::Clock::now();
    ran = ran && now - last < 2 * kBeat;
    last = now;
  };
  while (last - begin < 1s) {
    job.beat(0);
    if (!silent_first) job.beat(1);
    job.turn();
    note_turn();
  }
  job.say(0, rank_ended(0, 7));
  note_turn();
  const Deadline limit = Deadline::after(20s);
  while (job.coordinator().last_attempt()->nodes()[1].state != NodeState::lost && !limit.expired()) {
    job.beat(0);
    job.turn();
  }
  return ran;
}

TEST(CoordinatorEnd, ANodeThatWasSilentWhenTheFirstRankFailedIsTheRootCause) {
  for (const bool silent_first : {true, false}) {
    std::optional<CoordinatorJob> job;
    int trials = 0;
    do job.emplace();
    while (!fail_beside_a_silent_node(*job, silent_first) && ++trials < 20);
    ASSERT_LT(trials, 20) << "this process never runs for a second";
    const JobOutcome& outcome = job->coordinator().last_attempt()->supervisor().outcome();
    ASSERT_EQ(outcome.nodes.size(), 1U);
    EXPECT_EQ(outcome.root_cause(), silent_first ? RootCause::node : RootCause::rank);
    EXPECT_EQ(outcome.exit_status(), silent_first ? 1 : 7);
  }
}

TEST(CoordinatorEnd, ASilentNodeWhoseRanksOthersHaveLostIsNotWaitedFor) {
  for (const bool accused : {true, false}) {
    CoordinatorJob job;
    job.options.peers = {.beat = 50ms, .peer_timeout = 600s, .answer = 500ms};
    job.run();
    control::RankEnded end = rank_ended(0, 1);
    end.traces.stderr_tail =
        accused ? "libddp: all_reduce 7 of group world: rank 2 died or left the group\n" : "no memory\n";
    job.say(0, end);
    const Deadline limit = Deadline::after(accused ? 30s : 2s);
    while (job.coordinator().last_attempt()->nodes()[1].state != NodeState::lost && !limit.expired()) {
      job.beat(0);
      job.turn();
    }
    const JobOutcome& outcome = job.coordinator().last_attempt()->supervisor().outcome();
    ASSERT_EQ(outcome.nodes.size(), accused ? 1U : 0U);
    if (!accused) continue;
    EXPECT_EQ(outcome.root_cause(), RootCause::node) << "the rank followed";
    EXPECT_THAT(outcome.nodes[0].message, HasSubstr("ranks of other nodes have lost its own"));
  }
}

TEST(CoordinatorEnd, AnAccusedNodeThatShowsLifeIsNotLost) {
  CoordinatorJob job;
  job.options.peers = {.beat = 50ms, .peer_timeout = 600s, .answer = 500ms};
  job.run();
  control::RankEnded end = rank_ended(0, 1);
  end.traces.stderr_tail = "libddp: all_reduce 7 of group world: rank 2 died or left the group\n";
  job.say(0, end);
  job.beat(1);
  const Deadline limit = Deadline::after(2s);
  while (!limit.expired()) {
    job.beat(0);
    job.turn();
  }
  EXPECT_EQ(job.coordinator().last_attempt()->nodes()[1].state, NodeState::prepared);
}

// 10 s for the ranks, 4.8 s for all the rest; 1.2 s of them for the agents and srun to leave.
TEST(CoordinatorEnd, CleaningUpEndsInTimeForASilentNode) {
  for (const bool user : {true, false}) {
    CoordinatorJob job;
    job.options.shutdown_timeout = 10s;
    job.run();
    if (user) job.coordinator().signal_received(SIGTERM, false);
    job.end_ranks(0, 9);
    job.end_ranks(1, 9);
    job.say(0, kCleaned);
    job.forget_all();
    job.pass(13'500ms);
    EXPECT_TRUE(job.connected(1));
    job.pass(100ms);
    EXPECT_FALSE(job.connected(1));
    EXPECT_THAT(job.heard_texts(0), ElementsAre(user ? "Finish 143" : "Finish 9"));
    EXPECT_THAT(job.coordinator().outcome().silent, ElementsAre("b"));
    ASSERT_TRUE(job.coordinator().end_by());
    job.pass(300ms);
    EXPECT_TRUE(job.coordinator().finished()) << "agents had 0.3 s to leave";
  }
}

TEST(CoordinatorEnd, ANodeThatAnswersMayGoOnUnlessTheUserEndsTheJob) {
  for (const bool user : {true, false}) {
    CoordinatorJob job;
    job.options.shutdown_timeout = 10s;
    job.run();
    if (user) job.coordinator().signal_received(SIGTERM, false);
    job.end_ranks(0, 9);
    job.end_ranks(1, 9);
    job.say(0, kCleaned);
    job.forget_all();
    job.say(1, control::SignalReceived{.signal = SIGUSR2, .by_slurm = false});  // anything
    job.pass(13'600ms);
    if (user) {
      EXPECT_THAT(job.heard_texts(1), Contains("Finish 143"));
      EXPECT_THAT(job.notes, ElementsAre(HasSubstr("the agent on b (pid 7) has not finished")));
    } else {
      EXPECT_TRUE(job.connected(1));
      job.say(1, kCleaned);
      EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 9"));
    }
    EXPECT_THAT(job.coordinator().outcome().silent, IsEmpty());
  }
}

TEST(CoordinatorEnd, ASecondInterruptBringsTheEndForward) {
  CoordinatorJob job;
  job.run();
  job.coordinator().signal_received(SIGINT, false);
  ASSERT_TRUE(job.coordinator().end_by());
  const auto first = job.coordinator().end_by()->when();
  job.coordinator().signal_received(SIGINT, false);
  EXPECT_EQ(first - job.coordinator().end_by()->when(), 30s);
}

TEST(CoordinatorEnd, ARestartHasMoreTimeToFreeWhatRanksHold) {
  CoordinatorJob job;
  job.options.membership.max_restarts = 1;
  job.run();
  job.say(0, rank_ended(0, 7));
  job.pass(0ms);
  job.pass(30s);
  job.pass(9s);
  EXPECT_TRUE(job.connected(1));
  job.end_ranks(0, 7);
  job.end_ranks(1, 7);
  job.say(0, kCleaned);
  job.pass(15s);
  job.forget_all();
  job.say(1, kCleaned);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("PrepareAttempt"));
  EXPECT_FALSE(job.coordinator().end_by());
}

TEST(CoordinatorEnd, ANodeOfASuccessfulJobThatGoesSilentIsNoted) {
  CoordinatorJob job;
  job.options.peers = {.beat = 50ms, .peer_timeout = 1s, .answer = 500ms};
  job.clean();
  job.say(0, kCleaned);
  const Deadline limit = Deadline::after(20s);
  while (job.coordinator().last_attempt()->nodes()[1].state != NodeState::lost && !limit.expired()) {
    job.beat(0);
    job.turn();
  }
  EXPECT_THAT(job.notes, ElementsAre(AllOf(HasSubstr("the connection to ddprun's agent on b (pid 7) was lost"),
                                           HasSubstr("nothing has come from it for"))));
  EXPECT_THAT(job.heard_texts(0), Contains("Finish 0"));
  EXPECT_TRUE(job.coordinator().outcome().success());
}

TEST(CoordinatorEnd, ANodeOfASuccessfulJobThatFailsToCleanUpIsNotedOnce) {
  CoordinatorJob job;
  job.clean();
  job.say(1, control::AttemptFailed{.epoch = 0, .message = "the attempt process on b ended", .exit_status = 1});
  EXPECT_THAT(job.notes, ElementsAre("the attempt process on b ended"));
}

TEST(CoordinatorEnd, ASilentAgentIsLostInEachPhaseAndOneThatBeatsIsNot) {
  for (const auto reach : {&CoordinatorJob::gather, &CoordinatorJob::prepare, &CoordinatorJob::run}) {
    CoordinatorJob job;
    job.options.peers = {.beat = 50ms, .peer_timeout = 1s, .answer = 500ms};
    (job.*reach)();
    const Deadline limit = Deadline::after(20s);
    while (job.connected(0) && !limit.expired()) {
      job.beat(1);
      job.turn();
    }
    EXPECT_FALSE(job.connected(0));
    EXPECT_TRUE(job.connected(1));
    EXPECT_THAT(job.notes.empty() ? job.coordinator().outcome().nodes.at(0).message : job.notes.at(0),
                HasSubstr("nothing has come from it for"));
  }
}

TEST(CoordinatorEnd, CtrlZStopsTheRanksOfAllNodesInEachPhase) {
  for (const auto reach : {&CoordinatorJob::gather, &CoordinatorJob::prepare, &CoordinatorJob::run}) {
    CoordinatorJob job;
    (job.*reach)();
    job.coordinator().suspend();
    job.coordinator().resume();
    EXPECT_THAT(job.heard_texts(0),
                ElementsAre("Resting yes", "SignalRanks SIGSTOP groups", "Resting no", "SignalRanks SIGCONT groups"));
  }
}

TEST(CoordinatorEnd, CtrlZToAnAgentStopsTheRanksOfAllNodesUntilAllThatRestGoOn) {
  const std::string stop = "SignalRanks SIGSTOP groups", go_on = "SignalRanks SIGCONT groups";
  CoordinatorJob job;
  job.run();
  job.say(1, control::Resting{.rests = true});
  EXPECT_THAT(job.heard_texts(0), ElementsAre(stop));
  EXPECT_THAT(job.notes,
              ElementsAre("the agent on b (pid 7) was stopped by SIGTSTP: the ranks of all nodes wait for it"));
  job.say(0, control::Resting{.rests = true});
  EXPECT_EQ(job.notes.size(), 1U) << "where Slurm stops all, one line is enough";
  job.say(1, control::Resting{.rests = false});
  EXPECT_THAT(job.heard_texts(1), ElementsAre(stop, stop));
  job.coordinator().suspend();
  job.coordinator().resume();
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Resting yes", stop, "Resting no"));
  job.say(0, control::Resting{.rests = false});
  EXPECT_THAT(job.heard_texts(1), ElementsAre(go_on));
}

TEST(CoordinatorEnd, AnAgentThatCtrlZStopsMayBeSilent) {
  CoordinatorJob job;
  job.options.peers = {.beat = 50ms, .peer_timeout = 500ms, .answer = 500ms};
  job.run();
  job.say(1, control::Resting{.rests = true});
  const auto live = [&](std::chrono::milliseconds time) {
    for (const Deadline limit = Deadline::after(time); job.connected(1) && !limit.expired();) {
      job.beat(0);
      job.turn();
    }
  };
  live(1500ms);
  EXPECT_TRUE(job.connected(1));
  job.say(1, control::Resting{.rests = false});
  live(20s);
  EXPECT_FALSE(job.connected(1));
}

TEST(CoordinatorEnd, TheRanksGoOnWhereTheAgentThatCtrlZStoppedIsLost) {
  CoordinatorJob job;
  job.gather();
  job.say(0, control::Resting{.rests = true});
  job.heard_texts(1);
  job.lose(0);
  EXPECT_THAT(job.heard_texts(1), testing::Contains("SignalRanks SIGCONT groups"));
}

}  // namespace
}  // namespace ddp::launcher::test
