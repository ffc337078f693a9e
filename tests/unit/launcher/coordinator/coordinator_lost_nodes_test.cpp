// What the loss of a node means in each phase of a job: for the other nodes, and for the outcome.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorTest, ANodeLostWhileGatheringEndsTheJobUnlessItIsReplaceable) {
  CoordinatorJob job;
  job.gather();
  job.lose(0);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 1"));
  EXPECT_THAT(job.coordinator().outcome().nodes.at(0).message,
              HasSubstr("the agent on a (pid 7) was lost before the job started: it was closed"));
  CoordinatorJob patient;
  patient.options.membership.replaceable = true;
  patient.gather();
  patient.lose(0);
  EXPECT_THAT(patient.heard_texts(1), IsEmpty());
  EXPECT_THAT(patient.notes, ElementsAre(HasSubstr("was lost before the job started")));
  CoordinatorJob elastic;
  elastic.options.membership.min_nodes = 1;
  elastic.gather();
  const int third = elastic.connect();
  elastic.say(1, hello("b"));
  elastic.forget_all();
  EXPECT_EQ(elastic.coordinator().last_attempt()->nodes().size(), 2U);
  elastic.lose(third);  // it had not joined
  EXPECT_THAT(elastic.notes, IsEmpty());
}

TEST(CoordinatorTest, ANodeLostWhilePreparingEndsTheAttempt) {
  CoordinatorJob job;
  job.prepare();
  job.lose(0);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("EndAttempt 600000"));
  job.say(1, kCleaned);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 1"));
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).message,
            "the connection to ddprun's agent on a (pid 7) was lost: it was closed");
}

TEST(CoordinatorTest, ANodeLostWhileRunningEndsTheRanksOfTheOthers) {
  CoordinatorJob job;
  job.run();
  job.lose(1);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  job.pass(30s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("SignalRanks SIGKILL groups"));
  job.end_ranks(0, 1);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 600000"));
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1"));
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).node_rank, 1);
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).num_ranks, kRanksPerNode);
}

TEST(CoordinatorTest, ANodeLostAfterSuccessIsOnlyNoted) {
  CoordinatorJob job;
  job.clean();
  job.lose(1);
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("the connection to ddprun's agent on b (pid 7) was lost")));
  job.say(0, kCleaned);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 0"));
}

/// Nodes of which another may come for b, which is lost while ranks run; a has cleaned up.
void lose_one_of_too_few(CoordinatorJob& job) {
  job.options.membership.max_nodes = 3;
  job.options.membership.replaceable = true;
  job.options.membership.last_call = 0s;
  job.run();
  job.lose(1);
  job.end_ranks(0, 1);
  job.say(0, kCleaned);
  job.forget_all();
}

TEST(CoordinatorTest, BelowTheMinimumItWaitsForAnotherNodeWhichGoesOnInItsPlace) {
  CoordinatorJob job;
  lose_one_of_too_few(job);
  EXPECT_THAT(job.notes,
              ElementsAre("the connection to ddprun's agent on b (pid 7) was lost: it was closed; 1 node is left, and "
                          "--nnodes=2:3 needs 2: waiting for another ddprun, for 600 s at most"));
  job.pass(300s);
  EXPECT_EQ(job.notes.size(), 1U);
  job.beat(0);
  const int other = job.connect();
  job.say(other, hello("0"));  // before a by its name
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, with 0"));
  const auto plan = job.heard_one<control::PrepareAttempt>(other);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.epoch, 1);
  EXPECT_EQ(plan.restart_count, 0);
  EXPECT_FALSE(job.coordinator().end_by());
}

TEST(CoordinatorTest, WhileItWaitsTheJobCanEnd) {
  const struct {
    const char* how;
    void (*happen)(CoordinatorJob&);
    const char* finish;
    bool timed_out;
    int signal;
  } cases[] = {
      {"no other comes", [](CoordinatorJob& job) { job.pass(600s); }, "Finish 1", false, 0},
      {"a signal", [](CoordinatorJob& job) { job.coordinator().signal_received(SIGTERM, false); }, "Finish 1", false,
       SIGTERM},
      {"--timeout", [](CoordinatorJob& job) { job.pass(500s); }, "Finish 1", true, 0},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.how);
    CoordinatorJob job;
    if (each.timed_out) job.options.timeout = 500s;
    lose_one_of_too_few(job);
    each.happen(job);
    EXPECT_THAT(job.heard_texts(0), ElementsAre(each.finish));
    EXPECT_EQ(job.coordinator().outcome().timed_out, each.timed_out);
    EXPECT_EQ(job.coordinator().outcome().forwarded_signal, each.signal);
    EXPECT_EQ(job.coordinator().outcome().nodes.at(0).host, "b") << "the cause stays";
    const int late = job.connect();
    job.say(late, hello("c"));
    EXPECT_EQ(job.heard_one<control::Finish>(late).message, "run 'run' is over");
    job.lose(0);
    job.pass(5s);
    EXPECT_TRUE(job.coordinator().finished());
  }
}

TEST(CoordinatorTest, WhileItWaitsAnotherLossIsOnlyNotedAndAnAgentThatDoesNotFitEndsNothing) {
  CoordinatorJob job;
  lose_one_of_too_few(job);
  job.lose(0);
  EXPECT_THAT(job.notes.back(), HasSubstr("the agent on a (pid 7) was lost: it was closed"));
  const int wrong = job.connect();
  auto other = hello("c");
  other.version = "2.0";
  job.say(wrong, other);
  EXPECT_THAT(job.heard_one<control::Finish>(wrong).message, HasSubstr("version 2.0"));
  for (const char* host : {"c", "d"}) job.say(job.connect(), hello(host));
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 0 of 2, with c, d"));
}

TEST(CoordinatorTest, ANodeThatLosesItsRanksAgainAndAgainEndsAnElasticJob) {
  CoordinatorJob job;
  job.options.membership.min_nodes = 1;
  job.run();
  for (int epoch = 0; epoch < 3; ++epoch) {
    if (epoch > 0) {
      for (const int link : {0, 1}) job.say(link, control::AttemptPrepared{.epoch = epoch, .store_port = 29500});
    }
    job.say(1, control::AttemptFailed{.epoch = epoch, .message = "killed", .exit_status = 1, .may_recover = true});
    job.end_ranks(0, 1, epoch);
    for (const int link : {0, 1}) job.say(link, control::AttemptCleaned{.epoch = epoch});
  }
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 2 of 2", "generation 2: 2 of 2"));
  EXPECT_THAT(job.notes.back(), HasSubstr("3 generations in a row lost a node within 60 s of their start"));
  EXPECT_EQ(job.coordinator().exit_status(), 1);
}

TEST(CoordinatorTest, AllAgentsLostInEachPhase) {
  for (const auto reach : {&CoordinatorJob::gather, &CoordinatorJob::prepare, &CoordinatorJob::run}) {
    CoordinatorJob job;
    (job.*reach)();
    job.coordinator().agents_lost("srun ended", 7);
    job.turn();  // the attempt is over
    EXPECT_EQ(job.coordinator().exit_status(), 7);
    EXPECT_THAT(job.coordinator().outcome().nodes.at(0).message, HasSubstr("srun ended"));
    job.pass(5s);
    EXPECT_TRUE(job.coordinator().finished());
  }
  CoordinatorJob job;
  job.clean();
  job.coordinator().agents_lost("srun ended", 7);
  job.pass(5s);
  EXPECT_TRUE(job.coordinator().finished());
  EXPECT_EQ(job.coordinator().exit_status(), 0);
}

TEST(CoordinatorTest, TheEndOfWhatHoldsAnAgentFailsItsNode) {
  CoordinatorJob job;
  job.connect();
  job.connect();
  auto first = hello("a");
  first.order = 0;
  auto second = hello("b");
  second.order = 1;
  job.say(0, first);
  job.say(1, second);
  job.say(0, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.say(1, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.coordinator().agent_left(7, "unknown");
  job.forget_all();
  job.coordinator().agent_left(1, "ssh ended");
  job.turn();
  EXPECT_FALSE(job.connected(1));
  EXPECT_THAT(job.heard_texts(0), Contains("SignalRanks SIGTERM groups"));
}

}  // namespace
}  // namespace ddp::launcher::test
