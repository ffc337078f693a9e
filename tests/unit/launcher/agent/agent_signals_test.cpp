// An agent that loses its coordinator in each state, and signals to the agent itself.
#include <ddp/deadline.hpp>

#include "agent_fixture.hpp"

namespace ddp::launcher::test {
namespace {

class AgentLosesCoordinator : public AgentFixture {
 protected:
  AgentLosesCoordinator() { ::testing::internal::CaptureStderr(); }
  ~AgentLosesCoordinator() override {
    if (!told_) ::testing::internal::GetCapturedStderr();
  }
  std::string told() {
    told_ = true;
    return ::testing::internal::GetCapturedStderr();
  }
  void expect_finished() {
    EXPECT_TRUE(agent_->finished());
    EXPECT_EQ(agent_->exit_status(), 1);
  }

 private:
  bool told_ = false;
};

TEST_F(AgentLosesCoordinator, BeforeAnAttempt) {
  start();
  lose_coordinator();
  expect_finished();
  EXPECT_EQ(told(), "ddprun: n1: the connection to the coordinator at n0 was lost: it was closed\n");
}

TEST_F(AgentLosesCoordinator, BeforeTheRanksRun) {
  prepare();
  lose_coordinator();
  EXPECT_FALSE(agent_->finished());
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true), Is("EndAttempt")));
  report(cleaned());
  expect_finished();
  EXPECT_THAT(told(), AllOf(HasSubstr("was lost (it was closed)"), HasSubstr("ending the ranks of this node")));
}

TEST_F(AgentLosesCoordinator, WhileRanksRunTheyMayEnd) {
  run_ranks();
  lose_coordinator();
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true)));
  ASSERT_TRUE(agent_->next_deadline());
  report(rank_ended(0));
  EXPECT_THAT(to_attempt(), IsEmpty());
  report(rank_ended(1));
  EXPECT_THAT(to_attempt(), ElementsAre(Is("EndAttempt")));
  EXPECT_FALSE(agent_->finished());
  report(cleaned());
  expect_finished();
}

TEST_F(AgentLosesCoordinator, RanksThatDoNotEndAreKilledThenLeftToTheKernel) {
  job_.options.shutdown_timeout = std::chrono::seconds(0);
  limits_.orphan_cleaning = std::chrono::milliseconds(0);
  run_ranks();
  lose_coordinator();  // and time_passed()
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true),
                                        signal_ranks(SIGKILL, true), Is("EndAttempt")));
  EXPECT_FALSE(agent_->finished());
  turn();
  expect_finished();
}

TEST_F(AgentLosesCoordinator, AfterItHadTheRanksSignalled) {
  run_ranks();
  order(signal_ranks(SIGINT, true));
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGINT, true)));
  lose_coordinator();
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGCONT, true))) << "one signal to end is enough";
}

TEST_F(AgentLosesCoordinator, ASignalToTheProcessesAloneIsNoEnd) {
  run_ranks();
  order(signal_ranks(SIGUSR1, false));
  to_attempt();
  lose_coordinator();
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true)));
}

TEST_F(AgentLosesCoordinator, WhileTheAttemptEnds) {
  end_ranks();
  lose_coordinator();
  EXPECT_FALSE(agent_->finished());
  report(cleaned());
  expect_finished();
}

TEST_F(AgentLosesCoordinator, AfterTheAttempt) {
  clean();
  lose_coordinator();
  expect_finished();
  EXPECT_THAT(told(), HasSubstr("was lost: it was closed\n"));
}

TEST_F(AgentLosesCoordinator, ThenItsAttemptProcess) {
  run_ranks();
  lose_coordinator();
  lose_attempt();
  expect_finished();
}

TEST_F(AgentLosesCoordinator, AtOnceWithItsLastOrder) {
  start();
  coordinator_->send(control::Finish{.exit_status = 4});
  lose_coordinator();
  EXPECT_TRUE(agent_->finished());
  EXPECT_EQ(agent_->exit_status(), 4);
  EXPECT_EQ(told(), "");
}

using AgentSignals = AgentFixture;

TEST_F(AgentSignals, AreForwardedToRanksOnly) {
  start();
  agent_->forward_signal(SIGUSR1, true);
  order(plan());
  EXPECT_THAT(to_attempt(), IsEmpty());
  agent_->forward_signal(SIGUSR1, true);
  agent_->forward_signal(SIGUSR2, false);
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGUSR1, false, true), signal_ranks(SIGUSR2, false, false)));
  EXPECT_THAT(from_agent(), IsEmpty());
}

TEST_F(AgentSignals, EndingOnesGoToTheCoordinator) {
  run_ranks();
  agent_->ending_signal(SIGTERM, true);
  EXPECT_EQ(from_agent(), Messages{(control::SignalReceived{.signal = SIGTERM, .by_slurm = true})});
  EXPECT_THAT(to_attempt(), IsEmpty());
  ASSERT_TRUE(agent_->next_deadline());
  const auto limit = agent_->next_deadline()->when();
  EXPECT_GT(limit, Deadline::after(job_.options.shutdown_timeout).when());
  agent_->ending_signal(SIGTERM, false);
  EXPECT_EQ(agent_->next_deadline()->when(), limit) << "a second signal gives the coordinator no more time";
  EXPECT_FALSE(agent_->finished());
}

TEST_F(AgentSignals, ACoordinatorThatDoesNotReactIsLost) {
  job_.options.shutdown_timeout = std::chrono::seconds(1);  // for the ranks, once the coordinator is lost
  limits_.coordinator_patience = -job_.options.shutdown_timeout;
  run_ranks();
  ::testing::internal::CaptureStderr();
  agent_->ending_signal(SIGTERM, false);
  turn();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("was lost (it did not react to a signal); ending"));
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true)));
  EXPECT_THAT(from_agent(), ElementsAre(Is("SignalReceived")));
  EXPECT_FALSE(coordinator_->open());
  lose_attempt();
  EXPECT_TRUE(agent_->finished());
}

TEST_F(AgentSignals, WithoutAnAttemptAnUnresponsiveCoordinatorIsLeftAtOnce) {
  job_.options.shutdown_timeout = std::chrono::seconds(0);
  limits_.coordinator_patience = std::chrono::milliseconds(0);
  start();
  ::testing::internal::CaptureStderr();
  agent_->ending_signal(SIGTERM, false);
  turn();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("was lost: it did not react to a signal\n"));
  EXPECT_TRUE(agent_->finished());
}

}  // namespace
}  // namespace ddp::launcher::test
