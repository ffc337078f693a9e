// The course of a job from its beginning to its end: limits that pass, signals and restarts.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorTest, ABeginningAndAnEndInMessages) {
  CoordinatorJob job;
  job.options.membership.max_restarts = 2;
  job.gather();
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(1, hello("b"));
  const auto plan = job.heard_one<control::PrepareAttempt>(1);
  EXPECT_EQ(plan.epoch, 0);
  EXPECT_EQ(plan.restart_count, 0);
  EXPECT_EQ(plan.max_restarts, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_FALSE(plan.serve_store);
  ASSERT_EQ(plan.nodes.size(), 2U);
  EXPECT_EQ(plan.nodes[0].host, "a");
  EXPECT_EQ(plan.nodes[1].nproc, kRanksPerNode);
  const auto first = job.heard_one<control::PrepareAttempt>(0);
  EXPECT_TRUE(first.serve_store);
  EXPECT_EQ(first.name_space, plan.name_space);
  job.say(0, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(1, control::AttemptPrepared{.epoch = 0, .store_port = 1});  // only the first node serves the store
  const auto start = job.heard_one<control::StartAttempt>(1);
  EXPECT_EQ(start.store_port, 29500);
  EXPECT_THAT(start.store_addresses, ElementsAre("10.0.0.1"));
  job.forget_all();
  job.end_ranks(1, 0);
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.end_ranks(0, 0);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("EndAttempt 600000"));
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.say(1, kCleaned);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 0"));
  EXPECT_FALSE(job.coordinator().finished());
  job.lose(0);
  EXPECT_FALSE(job.coordinator().finished());
  job.lose(1);
  EXPECT_TRUE(job.coordinator().finished());
  EXPECT_EQ(job.coordinator().exit_status(), 0);
  EXPECT_EQ(job.coordinator().last_attempt()->world_size(), 4);
  EXPECT_THAT(job.notes, IsEmpty());
}

// ---- limits ----------------

TEST(CoordinatorTest, ANodeThatDoesNotPrepareInTimeFails) {
  CoordinatorJob job;
  job.prepare();
  job.pass(119s);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.pass(1s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 600000"));
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).message,
            "ddprun's agent on a (pid 7) did not prepare its ranks within 120 s");
}

TEST(CoordinatorTest, ANodeThatDoesNotCleanInTimeIsDropped) {
  CoordinatorJob job;
  job.clean();
  job.say(0, kCleaned);
  job.pass(619s);
  EXPECT_TRUE(job.connected(1));
  job.pass(1s);
  EXPECT_FALSE(job.connected(1));
  EXPECT_THAT(job.notes,
              ElementsAre("ddprun's agent on b (pid 7) does not answer; its processes may still be running"));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 0"));
  job.pass(3s);
  EXPECT_FALSE(job.coordinator().finished());
  job.pass(1s);
  EXPECT_TRUE(job.coordinator().finished());
}

TEST(CoordinatorTest, TheTimeoutOfTheJobInEachPhase) {
  const struct {
    void (CoordinatorJob::*reach)();
    Texts to_a;
    int exit_status;
  } cases[] = {
      {&CoordinatorJob::gather, {"Finish 124"}, 124},
      {&CoordinatorJob::prepare, {"EndAttempt 10000"}, 124},
      {&CoordinatorJob::run, {"SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"}, 0},
      {&CoordinatorJob::finish, {}, 0},
  };
  for (const auto& each : cases) {
    CoordinatorJob job;
    job.options.timeout = 4s;  // less than any other limit
    (job.*each.reach)();
    job.pass(3999ms);
    EXPECT_THAT(job.heard_texts(0), IsEmpty());
    job.pass(1ms);
    EXPECT_EQ(job.heard_texts(0), each.to_a);
    EXPECT_EQ(job.coordinator().exit_status(), each.exit_status);
    job.pass(1ms);
    EXPECT_THAT(job.heard_texts(0), IsEmpty());
  }
  CoordinatorJob cleaning;
  cleaning.options.timeout = 4s;
  cleaning.clean();
  cleaning.pass(4s);
  cleaning.pass(1s);
  EXPECT_THAT(cleaning.heard_texts(0), ElementsAre("EndAttempt 10000"));
}

TEST(CoordinatorTest, TheNextDeadlineIsTheEarliestLimit) {
  CoordinatorJob job;
  job.options.timeout = 1000s;
  job.prepare();
  const auto preparing = job.coordinator().next_deadline();
  ASSERT_TRUE(preparing);
  job.pass(120s - 1ms);
  EXPECT_EQ(job.coordinator().next_deadline()->when(), preparing->when());
  job.pass(1ms);
  EXPECT_GT(job.coordinator().next_deadline()->when(), preparing->when());
}

// ---- signals ----------------

TEST(CoordinatorTest, ASignalThatEveryAgentGetsIsOne) {
  CoordinatorJob job;
  job.run();
  const control::SignalReceived interrupt{.signal = SIGINT, .by_slurm = true};
  job.say(0, interrupt);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("SignalRanks SIGINT groups by Slurm", "SignalRanks SIGCONT groups"));
  job.say(1, interrupt);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.say(1, interrupt);  // again: it is meant to kill
  EXPECT_THAT(job.heard_texts(1), ElementsAre("SignalRanks SIGKILL groups"));
  job.say(0, interrupt);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.end_ranks(0, 1);
  job.end_ranks(1, 1);
  EXPECT_EQ(job.coordinator().exit_status(), 128 + SIGINT);
}

TEST(CoordinatorTest, ASignalThatEndsNothingGoesToTheRanks) {
  CoordinatorJob job;
  job.run();
  job.coordinator().signal_received(SIGUSR1, false);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("SignalRanks SIGUSR1"));
  CoordinatorJob early;
  early.prepare();
  early.coordinator().signal_received(SIGUSR1, false);
  EXPECT_THAT(early.heard_texts(0), IsEmpty());
}

TEST(CoordinatorTest, SignalsShortenTheDrainTime) {
  CoordinatorJob job;
  job.clean();
  EXPECT_EQ(job.coordinator().drain_time(), 10min);
  job.coordinator().signal_received(SIGTERM, false);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 10000"));
  job.coordinator().signal_received(SIGTERM, false);  // perhaps of the same cause
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.coordinator().signal_received(SIGINT, false);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 0"));
  EXPECT_EQ(job.coordinator().drain_time(), 0s);
  EXPECT_TRUE(job.coordinator().outcome().success());
}

// ---- restarts ----------------

TEST(CoordinatorTest, AfterALossTheNextAttemptHasANewEpochNoLostNodeAndSpendsNoRestart) {
  CoordinatorJob job;
  job.options.membership.min_nodes = 1;
  job.run();
  job.lose(0);
  job.end_ranks(1, 1);
  job.forget_all();
  const auto old_space = job.coordinator().last_attempt()->epoch();
  job.say(1, kCleaned);
  EXPECT_THAT(job.restarts, IsEmpty());
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2"));
  const auto plan = job.heard_one<control::PrepareAttempt>(1);
  EXPECT_EQ(plan.epoch, old_space + 1);
  EXPECT_EQ(plan.restart_count, 0);
  EXPECT_EQ(plan.nodes_lost, 1);
  EXPECT_EQ(plan.node_rank, 0);
  EXPECT_TRUE(plan.serve_store);
  ASSERT_EQ(plan.nodes.size(), 1U);
  EXPECT_EQ(plan.nodes[0].host, "b");
  for (const int epoch : {0, 1}) {  // the first is late
    job.say(1, control::AttemptPrepared{.epoch = epoch, .store_port = 29501});
    EXPECT_EQ(job.heard_texts(1), epoch == 0 ? Texts{} : Texts{"StartAttempt"});
  }
  job.end_ranks(1, 5, 0);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.end_ranks(1, 5, 1);
  job.forget_all();
  job.say(1, {control::AttemptCleaned{.epoch = 1}});
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 5"));  // no restart is left
  EXPECT_EQ(job.coordinator().restarts_used(), 0);
  EXPECT_EQ(job.coordinator().last_attempt()->world_size(), kRanksPerNode);
}

TEST(CoordinatorTest, AFailedRankSpendsARestart) {
  CoordinatorJob job;
  job.options.membership.max_restarts = 1;
  job.clean(5);
  job.say(0, kCleaned);
  job.say(1, kCleaned);
  EXPECT_THAT(job.restarts, ElementsAre("attempt 0, restart 1"));
  EXPECT_THAT(job.goings, IsEmpty());
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(1).restart_count, 1);
}

TEST(CoordinatorTest, NoRestartFollows) {
  const struct {
    const char* why;
    void (*happen)(CoordinatorJob&);
    const char* finish;
  } cases[] = {
      {"too few nodes are left", [](CoordinatorJob& job) { job.lose(1); }, "Finish 1"},
      {"a node says that it would fail again",
       [](CoordinatorJob& job) {
         job.say(1, control::AttemptFailed{.epoch = 0, .message = "no such program", .exit_status = 127});
       },
       "Finish 127"},
      {"a signal ends the job", [](CoordinatorJob& job) { job.coordinator().signal_received(SIGTERM, false); },
       "Finish 143"},
      {"it succeeded", [](CoordinatorJob&) {}, "Finish 0"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.why);
    CoordinatorJob job;
    job.options.membership.max_restarts = 1;
    job.run();
    each.happen(job);
    job.end_ranks(0, 0);
    if (job.coordinator().last_attempt()->nodes()[1].state != NodeState::lost) {
      job.end_ranks(1, 0);
      job.say(1, kCleaned);
    }
    job.forget_all();
    job.say(0, kCleaned);
    EXPECT_THAT(job.heard_texts(0), ElementsAre(each.finish));
    EXPECT_THAT(job.restarts, IsEmpty());
  }
}

TEST(CoordinatorTest, ANodeWhoseAttemptProcessDiedMayTakePartAgain) {
  CoordinatorJob job;
  job.options.membership.max_restarts = 1;
  job.run();
  job.say(1, control::AttemptFailed{.epoch = 0, .message = "killed", .exit_status = 1, .may_recover = true});
  job.end_ranks(0, 1);
  job.say(1, kCleaned);
  job.forget_all();
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("PrepareAttempt"));
}

TEST(CoordinatorTest, TorchrunsExitCodeIsOneForAnyFailure) {
  CoordinatorJob job;
  job.options.torchrun_exit_codes = true;
  job.clean(85);
  EXPECT_EQ(job.coordinator().exit_status(), 1);
  EXPECT_EQ(job.coordinator().outcome().exit_status(), 85);
}

TEST(CoordinatorTest, WhatTheStoreRefusedIsInTheOutcome) {
  CoordinatorJob job;
  job.clean();
  job.say(1, control::AttemptCleaned{.epoch = 0});
  job.say(0, control::AttemptCleaned{.epoch = 0, .store_refusals = std::vector<std::string>(20, "refused")});
  EXPECT_EQ(job.coordinator().outcome().store_refusals, std::vector<std::string>(kMostStoreRefusals, "refused"));
}

}  // namespace
}  // namespace ddp::launcher::test
