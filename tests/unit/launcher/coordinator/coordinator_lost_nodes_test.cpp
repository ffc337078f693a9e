// What the loss of a node means in each phase of a job: for the other nodes, and for the outcome.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
