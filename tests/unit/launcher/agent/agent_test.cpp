// What an agent does with each message of the coordinator, and with the end of its attempt process, in each state.
#include "agent/agent.hpp"

#include <ostream>

#include "agent_fixture.hpp"

#include <ddp/error.hpp>

#include "workers/orphans.hpp"

namespace ddp::launcher::test {
namespace {

enum class State { idle, prepared, running, ending, cleaned };
constexpr State kAll[] = {State::idle, State::prepared, State::running, State::ending, State::cleaned};

std::ostream& operator<<(std::ostream& out, State state) {
  constexpr const char* kNames[] = {"idle", "prepared", "running", "ending", "cleaned"};
  return out << kNames[static_cast<int>(state)];
}

class InEachState : public AgentFixture, public ::testing::WithParamInterface<State> {
 protected:
  void reach() {
    switch (GetParam()) {
      case State::idle: return start();
      case State::prepared: return prepare();
      case State::running: return run_ranks();
      case State::ending: return end_ranks();
      case State::cleaned: return clean();
    }
  }
  bool has_attempt() const { return GetParam() != State::idle; }
};

INSTANTIATE_TEST_SUITE_P(Agent, InEachState, ::testing::ValuesIn(kAll), ::testing::PrintToStringParamName());

enum class Taker { attempt, console, agent };
struct Row {
  control::Message message;
  Taker ordered;  ///< who gets it from the coordinator, where there is an attempt; reports go to the coordinator
};

/// All messages, also those that nobody sends in this direction: their receivers ignore them.
std::vector<Row> rows() {
  return {{control::Hello{.host = "n1"}, Taker::attempt},
          {control::AttemptPrepared{.epoch = kEpoch, .store_port = 7}, Taker::attempt},
          {control::RanksStarted{.epoch = kEpoch, .pids = {1, 2}}, Taker::attempt},
          {control::AttemptFailed{.epoch = kEpoch, .message = "no", .exit_status = 2}, Taker::attempt},
          {rank_ended(1), Taker::attempt},
          {control::RankAborted{.epoch = kEpoch, .local_rank = 1, .call = {.status = 3, .message = "abort"}},
           Taker::attempt},
          {control::RankStopped{.epoch = kEpoch, .local_rank = 1, .signal = SIGSTOP}, Taker::attempt},
          {cleaned(), Taker::attempt},
          {control::SignalReceived{.signal = SIGTERM, .by_slurm = false}, Taker::attempt},
          {plan(kEpoch + 1), Taker::agent},
          {control::StartAttempt{.epoch = kEpoch, .store_addresses = {"127.0.0.1"}, .store_port = 7}, Taker::attempt},
          {signal_ranks(SIGTERM, true), Taker::attempt},
          {control::EndAttempt{.epoch = kEpoch, .drain_ms = 5}, Taker::attempt},
          {control::Finish{}, Taker::agent},
          {control::Fence{.epoch = kEpoch, .ranks = {0, 1}, .data = {std::byte{1}}, .status = 0}, Taker::attempt},
          {control::ModexRequest{.epoch = kEpoch, .id = 5, .from_node = 1, .rank = 0}, Taker::attempt},
          {control::ModexReply{.epoch = kEpoch, .id = 6, .to_node = 0, .status = -1, .data = {std::byte{2}}},
           Taker::attempt},
          {control::FindAbsent{.epoch = kEpoch, .name = "ddp.fence.1", .limit_ms = 1}, Taker::attempt},
          {control::AbsentFound{.epoch = kEpoch, .name = "ddp.fence.1", .ranks = {{.first = 1, .count = 2}}},
           Taker::attempt},
          {control::CollectStacks{.epoch = kEpoch, .limit_ms = 1}, Taker::attempt},
          {control::StacksCollected{.epoch = kEpoch, .groups = {{.ranks = {0}, .tool = "gdb", .text = "x"}}},
           Taker::attempt},
          {control::ConsoleOutput{
               .epoch = kEpoch, .error = false, .pieces = {{.writer = control::kWholeLines, .text = "line\n"}}},
           Taker::attempt},
          {control::ConsoleTaken{.epoch = kEpoch, .error = false, .messages = 1}, Taker::console},
          {control::RanksStill{.epoch = kEpoch, .still = true}, Taker::attempt},
          {control::ObserveRanks{.epoch = kEpoch, .limit_ms = 1}, Taker::attempt},
          {control::RanksObserved{.epoch = kEpoch, .facts = {std::byte{9}}}, Taker::attempt},
          {control::Resting{.rests = true}, Taker::agent},
          {control::Progress{.epoch = kEpoch}, Taker::attempt},
          {control::Input{.data = {std::byte{1}}, .end = false}, Taker::agent},
          {control::InputTaken{.bytes = 1}, Taker::attempt},
          {control::StepTasks{.ranks = {0}}, Taker::attempt},
          {control::RankEndNoted{.epoch = kEpoch}, Taker::attempt},
          {control::JoinTaken{.spare = true}, Taker::agent},
          {control::NodesChange{.epoch = kEpoch, .pending = true}, Taker::attempt},
          {control::AllocationHello{.allocation = "8"}, Taker::attempt},
          {control::ResizeAsked{.nodes = 1}, Taker::attempt},
          {control::KillRanks{.epoch = kEpoch, .local_ranks = {1}}, Taker::attempt},
          {control::WarmWorkersReady{}, Taker::attempt}};
}

TEST(AgentMessages, AllAreInTheTable) {
  std::set<std::size_t> kinds;
  for (const Row& row : rows()) kinds.insert(row.message.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<control::Message> - 1) << "all but Encoded, which is never sent as such";
}

TEST_P(InEachState, EachOrderGoesToTheAttemptOrNowhere) {
  for (const Row& row : rows()) {
    const control::Message& message = row.message;
    SCOPED_TRACE(control::name_of(message));
    reach();
    const int started = started_;
    order(message);
    const auto got_by = [&](Taker who) { return has_attempt() && row.ordered == who ? Messages{message} : Messages{}; };
    EXPECT_EQ(to_attempt(), got_by(Taker::attempt));
    EXPECT_EQ(to_console(), got_by(Taker::console));
    const bool answered = !has_attempt() && std::holds_alternative<control::EndAttempt>(message);
    EXPECT_EQ(from_agent(), answered ? Messages{cleaned()} : Messages{});
    EXPECT_EQ(started_ - started, std::holds_alternative<control::PrepareAttempt>(message) ? 1 : 0);
    EXPECT_EQ(agent_->finished(), std::holds_alternative<control::Finish>(message));
    end_agent();
  }
}

TEST_P(InEachState, EachReportGoesToTheCoordinator) {
  if (!has_attempt()) return;
  for (const auto& [message, ordered] : rows()) {
    SCOPED_TRACE(control::name_of(message));
    reach();
    (std::holds_alternative<control::ConsoleOutput>(message) ? console_ : attempt_)->send(message);
    turn();
    EXPECT_EQ(from_agent(), Messages{message});
    EXPECT_THAT(to_attempt(), IsEmpty());
    EXPECT_THAT(to_console(), IsEmpty());
    EXPECT_FALSE(agent_->finished());
    end_agent();
  }
}

TEST_P(InEachState, PrepareAttemptReplacesTheAttempt) {
  reach();
  const pid_t before = attempt_pid_;
  order(plan(kEpoch + 1));
  EXPECT_EQ(started_, has_attempt() ? 2 : 1);
  EXPECT_NE(attempt_pid_, before);
  if (has_attempt()) {
    EXPECT_EQ(::kill(before, 0), -1) << "the earlier attempt process is there";
  }
  EXPECT_TRUE(attempt_is_alive());
  report(control::AttemptPrepared{.epoch = kEpoch + 1, .store_port = 8});
  EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptPrepared")));
}

TEST_P(InEachState, FinishEndsTheAgentAndItsAttempt) {
  reach();
  ::testing::internal::CaptureStderr();
  coordinator_->send(control::Finish{.exit_status = 9, .message = "refused"});
  order(signal_ranks(SIGTERM, true));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "ddprun: n1: refused\n");
  EXPECT_TRUE(agent_->finished());
  EXPECT_EQ(agent_->exit_status(), 9);
  EXPECT_THAT(to_attempt(), IsEmpty());
  if (has_attempt()) {
    EXPECT_FALSE(attempt_is_alive());
  }
  EXPECT_THAT(from_agent(), IsEmpty());
  EXPECT_FALSE(coordinator_->open());
}

TEST_P(InEachState, TheEndOfTheAttemptProcessIsAFailureUntilItHasCleanedUp) {
  if (!has_attempt()) return;
  reach();
  lose_attempt();
  const Messages messages = from_agent();
  if (GetParam() == State::cleaned) {
    EXPECT_THAT(messages, IsEmpty());
  } else {
    ASSERT_THAT(messages, ::testing::Not(IsEmpty()));
    const auto* failure = std::get_if<control::AttemptFailed>(&messages.front());
    ASSERT_NE(failure, nullptr);
    EXPECT_EQ(failure->epoch, kEpoch);
    EXPECT_TRUE(failure->may_recover);
    EXPECT_EQ(failure->exit_status, 1);
    EXPECT_THAT(failure->message, AllOf(HasSubstr("n1"), HasSubstr("pid " + std::to_string(attempt_pid_)),
                                        HasSubstr("was ended by SIGKILL")));
    EXPECT_EQ(messages.size(), GetParam() == State::ending ? 2U : 1U);
    EXPECT_THAT(messages.back(), Is(GetParam() == State::ending ? "AttemptCleaned" : "AttemptFailed"));
    order(control::EndAttempt{.epoch = kEpoch});
    EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptCleaned")));
  }
  EXPECT_FALSE(agent_->finished());
  order(plan(kEpoch + 1));
  EXPECT_EQ(started_, 2);
}

using AgentTest = AgentFixture;

TEST_F(AgentTest, AnExitCodeOfTheAttemptProcessIsNamed) {
  child_ = [] { ::signal(SIGUSR1, [](int) { ::_exit(5); }); };
  run_ranks();
  lose_attempt(SIGUSR1);
  const Messages messages = from_agent();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(std::get<control::AttemptFailed>(messages.front()).message, HasSubstr("ended with exit code 5"));
}

TEST_F(AgentTest, AnAttemptProcessThatOnlyClosesItsConnectionIsKilled) {
  run_ranks();
  attempt_.reset();
  turn();
  const Messages messages = from_agent();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(std::get<control::AttemptFailed>(messages.front()).message, HasSubstr("stopped answering"));
  EXPECT_FALSE(attempt_is_alive());
}

TEST_F(AgentTest, WhatADeadAttemptProcessHadStartedIsKilled) {
  become_subreaper();
  child_ = [] {
    if (::fork() != 0) return;
    ::signal(SIGTERM, SIG_IGN);
    ::close(3);
    for (;;) ::pause();
  };
  run_ranks();
  lose_attempt();  // the fixture finds children that are left
  EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptFailed")));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(AgentTest, SigchldDoesNotTakeTheEndOfTheAttemptProcess) {
  run_ranks();
  ::kill(attempt_pid_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(attempt_pid_), &info, WEXITED | WNOWAIT), 0);
  agent_->child_ended();
  lose_attempt();
  const Messages messages = from_agent();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(std::get<control::AttemptFailed>(messages.front()).message, HasSubstr("was ended by SIGKILL"));
}

TEST_F(AgentTest, AnAttemptProcessThatCannotBeStartedIsAFailure) {
  child_ = nullptr;  // std::bad_function_call would end the child; the parent throws before
  control::ConnectionPair pair = control::make_pair();
  coordinator_.emplace(std::move(pair.first), "the agent");
  agent_ = std::make_unique<Agent>(
      job_, control::Hello{.version = "1", .run_id = "run", .host = "n1"},
      control::Connection{std::move(pair.second), "the coordinator"}, loop_,
      [](const NodeJob&, const control::PrepareAttempt&) -> AttemptProcess { throw std::runtime_error("no process"); });
  order(plan());
  EXPECT_THAT(from_agent(), ElementsAre(Is("Hello"), control::Message{control::AttemptFailed{
                                                         .epoch = kEpoch, .message = "no process", .exit_status = 1}}));
  order(control::EndAttempt{.epoch = kEpoch});
  EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptCleaned")));
}

TEST_F(AgentTest, ARefusalIsToldWhenAnAttemptIsWanted) {
  job_.refusal = NodeRefusal{.message = "no such program", .exit_status = 127};
  start();
  order(plan());
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(from_agent(),
            Messages{(control::AttemptFailed{.epoch = kEpoch, .message = "no such program", .exit_status = 127})});
}

TEST_F(AgentTest, WhereANodeHasNoRanksNothingIsPrepared) {
  start();
  control::PrepareAttempt with_empty_node = plan();
  with_empty_node.nodes.push_back({.host = "n2", .nproc = 0});
  order(with_empty_node);
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(from_agent(), Messages{(control::AttemptPrepared{.epoch = kEpoch, .store_port = 0})});
}

TEST_F(AgentTest, DestructionEndsTheAttempt) {
  run_ranks();
  agent_.reset();
  EXPECT_FALSE(attempt_is_alive());
  EXPECT_THAT(from_agent(), IsEmpty());
  EXPECT_FALSE(coordinator_->open());
}

TEST_F(AgentTest, TheConsolesAnswersToAnEarlierAttemptAreDropped) {
  prepare();
  order(control::ConsoleTaken{.epoch = kEpoch - 1, .error = false, .messages = 1});
  EXPECT_THAT(to_console(), IsEmpty());
  EXPECT_THAT(to_attempt(), IsEmpty());
}

TEST_F(AgentTest, WithoutItsCoordinatorTheAttemptKeepsItsOutput) {
  prepare();
  testing::internal::CaptureStderr();
  lose_coordinator();
  testing::internal::GetCapturedStderr();
  to_console();
  EXPECT_FALSE(console_->open());
  EXPECT_TRUE(attempt_is_alive());
}

}  // namespace
}  // namespace ddp::launcher::test
