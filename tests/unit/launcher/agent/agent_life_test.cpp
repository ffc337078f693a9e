// Who counts as lost though nothing is closed: a coordinator or an attempt process that shows no life, in time; and who
// does not.
#include "agent_fixture.hpp"

namespace ddp::launcher::test {
namespace {

class AgentLife : public AgentFixture {
 protected:
  AgentLife() {
    job_.peers = {.beat = 50ms, .peer_timeout = 1h, .answer = 1h, .end_answer = 1h};
    limits_.attempt_silence = 0ms;
    limits_.final_kill = limits_.kill = 5s;
    ::testing::internal::CaptureStderr();
  }
  ~AgentLife() override {
    if (!told_) ::testing::internal::GetCapturedStderr();
  }
  std::string told() {
    told_ = true;
    return ::testing::internal::GetCapturedStderr();
  }
  /// Turns the loop for @p time, or until @p until; the coordinator and the attempt process show life where wanted.
  void live(
      std::chrono::milliseconds time, const std::function<bool()>& until = [] { return false; }) {
    const Deadline limit = Deadline::after(time);
    while (!limit.expired() && !until()) {
      if (coordinator_ && coordinator_lives_) coordinator_->beat();
      if (attempt_ && attempt_lives_) attempt_->beat();
      loop_.run_once(Deadline::after(2ms));
      agent_->time_passed();
      if (attempt_ && keep_) continue;
      if (attempt_) attempt_->receive();
    }
  }
  bool coordinator_open() { return coordinator_->receive(), coordinator_->open(); }

  bool coordinator_lives_ = true;
  bool attempt_lives_ = true;
  bool keep_ = true;  ///< messages to the attempt process

 private:
  bool told_ = false;
};

TEST_F(AgentLife, ASilentCoordinatorIsLostInTimeAndOneThatBeatsIsNot) {
  job_.peers.peer_timeout = 1s;
  attempt_lives_ = true;
  run_ranks();
  live(1500ms);
  EXPECT_TRUE(coordinator_open());
  EXPECT_THAT(to_attempt(), IsEmpty());
  coordinator_lives_ = false;
  live(20s, [this] { return !coordinator_open(); });
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true), signal_ranks(SIGCONT, true)));
  EXPECT_THAT(told(),
              HasSubstr("the connection to the coordinator at n0 was lost (it no longer sends anything); ending"));
}

TEST_F(AgentLife, ACoordinatorThatCtrlZStopsIsWaitedFor) {
  job_.peers.peer_timeout = 500ms;
  run_ranks();
  order(control::Resting{.rests = true});
  coordinator_lives_ = false;
  live(1s);
  EXPECT_TRUE(coordinator_open());
  order(control::Resting{.rests = false});
  live(20s, [this] { return !coordinator_open(); });
  EXPECT_FALSE(coordinator_open());
}

TEST_F(AgentLife, ACoordinatorMustAnswerASignal) {
  job_.peers.answer = 500ms;
  run_ranks();
  coordinator_lives_ = false;
  live(1s);
  EXPECT_TRUE(coordinator_open()) << "without a signal it may be silent until the peer timeout";
  agent_->ending_signal(SIGTERM, false);
  live(20s, [this] { return !coordinator_open(); });
  EXPECT_THAT(told(), HasSubstr("was lost (it did not react to a signal); ending"));
}

TEST_F(AgentLife, AStoppedAttemptProcessIsLostInTime) {
  job_.peers.peer_timeout = 1s;
  run_ranks();
  live(1500ms);
  EXPECT_THAT(from_agent(), IsEmpty());
  attempt_lives_ = false;
  ::kill(attempt_pid_, SIGSTOP);
  live(20s, [this] { return !attempt_is_alive(); });
  const Messages messages = from_agent();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(std::get<control::AttemptFailed>(messages.front()).message, HasSubstr("stopped answering"));
}

TEST_F(AgentLife, BeforeItsRanksRunAnAttemptProcessHasMoreTime) {
  job_.peers.peer_timeout = 500ms;
  attempt_lives_ = false;
  prepare();
  live(1s);
  EXPECT_TRUE(attempt_is_alive());
  limits_.start = 0ms;
}

TEST_F(AgentLife, SigkillAndTheEndMustBeObeyedSoon) {
  const control::Message orders[] = {signal_ranks(SIGKILL, true), control::EndAttempt{.epoch = kEpoch}};
  job_.peers.end_answer = 500ms;
  run_ranks();
  attempt_lives_ = false;
  ::kill(attempt_pid_, SIGSTOP);
  order(signal_ranks(SIGTERM, true));
  live(1s);
  EXPECT_TRUE(attempt_is_alive()) << "ranks may take their time to save their state";
  for (const control::Message& message : orders) {
    order(message);
    live(20s, [this] { return !attempt_is_alive(); });
    EXPECT_FALSE(attempt_is_alive());
    EXPECT_THAT(from_agent(), testing::Contains(Is("AttemptFailed")));
    order(plan());
    report(control::RanksStarted{.epoch = kEpoch, .pids = std::vector<std::int64_t>(kRanks, 1)});
    from_agent();
    ::kill(attempt_pid_, SIGSTOP);
  }
}

TEST_F(AgentLife, CtrlZStopsAndResumesTheRanks) {
  run_ranks();
  agent_->suspend(false);
  agent_->resume(false);
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGSTOP, true), signal_ranks(SIGCONT, true)));
  EXPECT_THAT(from_agent(), IsEmpty());
}

TEST_F(AgentLife, TheCoordinatorHearsOfCtrlZAndLetsTheRanksGoOn) {
  run_ranks();
  agent_->suspend(true);
  agent_->resume(true);
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGSTOP, true)));
  EXPECT_THAT(from_agent(), ElementsAre(control::Message{control::Resting{.rests = true}},
                                        control::Message{control::Resting{.rests = false}}));
  coordinator_.reset();
  live(20s, [this] { return agent_->next_deadline().has_value(); });  // orphaned
  to_attempt();
  agent_->suspend(true);
  agent_->resume(true);
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGSTOP, true), signal_ranks(SIGCONT, true)));
}

TEST_F(AgentLife, AnAttemptProcessWhoseRanksCtrlZStopsMayBeSilent) {
  job_.peers.peer_timeout = 500ms;
  run_ranks();
  order(signal_ranks(SIGSTOP, true));
  attempt_lives_ = false;
  live(1500ms);
  EXPECT_TRUE(attempt_is_alive());
  order(signal_ranks(SIGCONT, true));
  ::kill(attempt_pid_, SIGSTOP);
  live(20s, [this] { return !attempt_is_alive(); });
  EXPECT_FALSE(attempt_is_alive());
}

// ---- signals of Slurm's, which come to the agent, and to the ranks perhaps ----------------

TEST_F(AgentLife, WhereSlurmHasSignalledThisAgentTheAttemptProcessLooksWhetherTheRanksHaveIt) {
  run_ranks();
  agent_->ending_signal(SIGTERM, true);
  order(signal_ranks(SIGTERM, true, true));
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true, true)));
}

TEST_F(AgentLife, AnOrderOfACoordinatorThatSlurmSignalledEarlierWaitsForSlurm) {
  run_ranks();
  order(signal_ranks(SIGTERM, true, true));
  EXPECT_THAT(to_attempt(), IsEmpty());
  agent_->ending_signal(SIGTERM, true);
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true, true)));
}

TEST_F(AgentLife, WhereSlurmSignalsNoAgentTheRanksGetTheOrderAfterAWhile) {
  run_ranks();
  order(signal_ranks(SIGTERM, true, true));
  live(20s, [this] { return !agent_->next_deadline(); });
  EXPECT_THAT(to_attempt(), ElementsAre(signal_ranks(SIGTERM, true, false)));
}

}  // namespace
}  // namespace ddp::launcher::test
