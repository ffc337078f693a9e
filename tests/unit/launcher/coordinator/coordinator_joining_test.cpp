// Which agents may join a job, and what those that do not fit or do not come mean for it.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorTest, AnAgentThatDoesNotFitIsToldWhyAndEndsAJobThatNeedsIt) {
  CoordinatorJob job;
  job.gather();
  auto other = hello("b");
  other.version = "2.0";
  job.say(1, other);
  const auto answer = job.heard_one<control::Finish>(1);
  EXPECT_EQ(answer.exit_status, 1);
  EXPECT_THAT(answer.message, HasSubstr("ddprun on b is version 2.0, but the coordinator's is 1.0"));
  EXPECT_FALSE(job.connected(1));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1"));
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("refused the agent on b (pid 7): ddprun on b is version 2.0")));
  EXPECT_THAT(job.coordinator().outcome().nodes.at(0).message,
              AllOf(HasSubstr("version 2.0"), HasSubstr("1 of 2 nodes has joined: a")));
}

TEST(CoordinatorTest, AfterFiveSecondsItSaysOnceForWhomItWaits) {
  CoordinatorJob job;
  job.gather();
  job.pass(4s);
  EXPECT_THAT(job.notes, IsEmpty());
  job.pass(1s);
  job.beat(0);
  job.pass(20s);
  EXPECT_THAT(job.notes, ElementsAre(AllOf(HasSubstr("waiting for other nodes, for 600 s at most"),
                                           HasSubstr("1 of 2 nodes has joined: a"), HasSubstr("; look at b"))));
}

TEST(CoordinatorTest, NodesThatDoNotComeAreAnErrorWithTheSameHint) {
  CoordinatorJob job;
  job.options.membership.join_timeout = 2s;
  job.gather();
  job.pass(2s);
  EXPECT_THAT(job.coordinator().outcome().nodes.at(0).message,
              AllOf(HasSubstr("not all nodes joined within 2 s"), HasSubstr("; look at b")));
}

TEST(CoordinatorTest, AnAgentOfAnotherVersionEndsNothingWhereAgentsAreStartedOneByOne) {
  CoordinatorJob job;
  job.options.membership.replaceable = true;
  job.gather();
  auto other = hello("b");
  other.version = "2.0";
  job.say(1, other);
  EXPECT_THAT(job.heard_one<control::Finish>(1).message, HasSubstr("ddprun on b is version 2.0"));
  const int late = job.connect();
  job.say(late, hello("b"));
  EXPECT_THAT(job.heard_texts(late), ElementsAre("PrepareAttempt"));
}

TEST(CoordinatorTest, AnAgentWhoseHelloIsInvalidEndsNothing) {
  CoordinatorJob job;
  job.gather();
  job.say(1, hello("../b"));
  EXPECT_FALSE(job.connected(1));
  EXPECT_THAT(job.notes, ElementsAre(AllOf(HasSubstr("before it joined: it sent an invalid message"),
                                           HasSubstr("Hello: 'host' is longer than 255 bytes, or has a '/'"))));
  const int late = job.connect();
  job.say(late, hello("b"));
  EXPECT_THAT(job.heard_texts(late), ElementsAre("PrepareAttempt"));
}

TEST(CoordinatorTest, AnAgentThatLeavesBeforeItsHelloIsToldOf) {
  CoordinatorJob job;
  job.gather();
  job.lose(1);
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("before it joined: it was closed")));
  const int late = job.connect();
  job.say(late, hello("b"));
  EXPECT_THAT(job.heard_texts(late), ElementsAre("PrepareAttempt"));
}

TEST(CoordinatorTest, AnAgentOfAnotherRunEndsNothing) {
  CoordinatorJob job;
  job.gather();
  auto other = hello("x");
  other.run_id = "other";
  job.say(1, other);
  EXPECT_THAT(job.heard_one<control::Finish>(1).message, HasSubstr("belongs to run 'other'"));
  const int late = job.connect();
  job.say(late, hello("b"));
  EXPECT_THAT(job.heard_texts(late), ElementsAre("PrepareAttempt"));
}

TEST(CoordinatorTest, AnAgentThatComesLateIsRefusedInEveryPhase) {
  const char* const runs = "run 'run' has already started; nodes cannot join a running job";
  const std::pair<void (CoordinatorJob::*)(), const char*> phases[] = {
      {&CoordinatorJob::prepare, runs}, {&CoordinatorJob::run, runs}, {&CoordinatorJob::finish, "run 'run' is over"}};
  for (const auto& [reach, why] : phases) {
    CoordinatorJob job;
    (job.*reach)();
    const int late = job.connect();
    job.say(late, hello("c"));
    const auto answer = job.heard_one<control::Finish>(late);
    EXPECT_EQ(answer.message, why);
    EXPECT_FALSE(job.connected(late));
    EXPECT_TRUE(job.connected(0));
  }
}

TEST(CoordinatorTest, NodesThatDoNotComeInTimeEndTheJob) {
  CoordinatorJob job;
  job.gather();
  job.pass(599s);
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.pass(1s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1"));
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).message,
            "not all nodes joined within 600 s; 1 of 2 nodes has joined: a; look at b");
  EXPECT_EQ(job.coordinator().last_attempt(), nullptr);
}

TEST(CoordinatorTest, AnAgentThatWillNotComeEndsAJobThatNeedsIt) {
  CoordinatorJob job;
  job.gather();
  EXPECT_FALSE(job.coordinator().agents_missing(1, "no way to b"));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1"));
  EXPECT_EQ(job.coordinator().outcome().nodes.at(0).message, "no way to b");
}

TEST(CoordinatorTest, AJobThatCanShrinkBeginsWithoutAnAgentThatWillNotCome) {
  CoordinatorJob job;
  job.options.membership.min_nodes = 1;
  job.gather();
  EXPECT_TRUE(job.coordinator().agents_missing(1, "no way to b"));
  job.turn();
  EXPECT_THAT(job.heard_texts(0), ElementsAre("PrepareAttempt"));
  EXPECT_THAT(job.notes, ElementsAre("no way to b"));
}

TEST(CoordinatorTest, RanksEndForANodeThatJoinsOnceItsInterpretersAreReady) {
  CoordinatorJob job;
  job.options.membership.max_nodes = 3;
  job.options.membership.last_call = 5s;
  job.options.membership.replaceable = true;
  job.gather();
  job.say(1, hello("b"));
  job.pass(5s);
  for (const int link : {1, 0}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.forget_all();
  const int late = job.connect();
  control::Hello warms = hello("c");
  warms.warms = true;
  job.say(late, warms);
  EXPECT_THAT(job.heard_texts(late), ElementsAre("JoinTaken"));
  job.pass(20s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1"));
  job.say(late, control::WarmWorkersReady{});
  job.pass(0s);
  EXPECT_THAT(job.heard_texts(0),
              ElementsAre("NodesChange 1 pending", "SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
}

}  // namespace
}  // namespace ddp::launcher::test
