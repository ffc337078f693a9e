// When the agent starts the process of the next attempt beforehand (--warm-workers), and what becomes of it.
#include <signal.h>
#include <sys/wait.h>

#include "agent_fixture.hpp"

namespace ddp::launcher::test {
namespace {

using ::testing::ElementsAre;

control::PrepareAttempt plan_of(int epoch, int restarts, int max_restarts) {
  control::PrepareAttempt made = plan(epoch);
  made.restart_count = restarts;
  made.max_restarts = max_restarts;
  return made;
}

struct AgentStandby : AgentFixture {
  AgentStandby() {
    job_.options.warm_workers = "torch";
    job_.command = {
        .path = "/usr/bin/python3", .arguments = {"python3", "-u", "train.py"}, .display = "train.py", .python = true};
    limits_.warm_delay = std::chrono::milliseconds(0);
  }

  /// The ranks of this plan run.
  void run(const control::PrepareAttempt& first) {
    if (!agent_) start();
    order(first);
    report_started(first.epoch);
  }
  void report_started(int epoch) {
    report(control::AttemptPrepared{.epoch = epoch, .store_port = 7});
    EXPECT_EQ(standbys_, before_);
    report(control::RanksStarted{.epoch = epoch, .pids = std::vector<std::int64_t>(kRanks, 1)});
    from_agent();
  }
  void end(int epoch) {
    order(control::EndAttempt{.epoch = epoch});
    report(control::AttemptCleaned{.epoch = epoch});
    from_agent();
  }

  int before_ = 0;  ///< standbys_ until ranks run
};

TEST_F(AgentStandby, TheNextAttemptRunsInAProcessThatWasStartedBesideTheRanks) {
  run(plan_of(3, 0, 1));
  ASSERT_EQ(standbys_, 1);
  end(3);
  order(plan_of(4, 1, 1));
  EXPECT_EQ(started_, 1);
  EXPECT_THAT(standby_->receive(), ElementsAre(Is("PrepareAttempt")));
  // It is the attempt's process now: what it says reaches the coordinator. None follows the last attempt.
  attempt_ = std::move(standby_);
  before_ = 1;
  report(control::AttemptPrepared{.epoch = 4, .store_port = 7});
  EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptPrepared")));
  report_started(4);
  EXPECT_EQ(standbys_, 1);
  EXPECT_EQ(::kill(standby_pid_, 0), 0);
}

/// The time for which an attempt process may be silent begins with its plan.
TEST_F(AgentStandby, ThatItWasSilentBeforeItsPlanDoesNotCount) {
  using std::chrono_literals::operator""ms;
  job_.peers = {.beat = 20ms,
                .peer_timeout = std::chrono::hours(1),
                .answer = std::chrono::hours(1),
                .end_answer = std::chrono::hours(1)};
  limits_.start = std::chrono::seconds(3);
  const auto live = [this](std::chrono::milliseconds time) {
    for (const Deadline limit = Deadline::after(time); !limit.expired(); ::usleep(1000)) turn();
  };
  run(plan_of(3, 0, 1));
  ASSERT_EQ(standbys_, 1);
  live(3100ms);
  end(3);
  order(plan_of(4, 1, 1));
  EXPECT_EQ(started_, 1);
  live(200ms);
  EXPECT_EQ(::kill(standby_pid_, 0), 0);
  EXPECT_THAT(from_agent(), ElementsAre());
}

TEST_F(AgentStandby, OneThatWasKilledIsReplacedByANewProcess) {
  run(plan_of(3, 0, 1));
  ASSERT_EQ(standbys_, 1);
  ::kill(standby_pid_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(standby_pid_), &info, WEXITED | WNOWAIT), 0);
  agent_->child_ended();
  end(3);
  order(plan_of(4, 1, 1));
  EXPECT_EQ(started_, 2);
}

TEST_F(AgentStandby, ALostAttemptProcessLeavesIt) {
  run(plan_of(3, 0, 1));
  lose_attempt();
  EXPECT_THAT(from_agent(), ElementsAre(Is("AttemptFailed")));
  end(3);
  order(plan_of(4, 0, 1));
  EXPECT_EQ(started_, 1);
}

TEST_F(AgentStandby, ItIsStartedOnlyWhereRanksMayStartAgainAsPythonPrograms) {
  run(plan_of(3, 1, 1));
  EXPECT_EQ(standbys_, 0);
  end(3);
  control::PrepareAttempt elastic = plan_of(4, 1, 1);
  elastic.elastic = true;
  run(elastic);
  EXPECT_EQ(standbys_, 1);
  end_agent();

  standbys_ = 0;
  job_.command.arguments = {"python3", "-i", "train.py"};
  run(plan_of(3, 0, 1));
  EXPECT_EQ(standbys_, 0);
  end_agent();

  job_.command.python = false;
  run(plan_of(3, 0, 1));
  EXPECT_EQ(standbys_, 0);
}

TEST_F(AgentStandby, RanksThatEndWithinTheDelayGetNone) {
  limits_.warm_delay = std::chrono::hours(1);
  run(plan_of(3, 0, 1));
  ASSERT_TRUE(agent_->next_deadline());
  order(control::EndAttempt{.epoch = 3});
  EXPECT_EQ(standbys_, 0);
}

TEST_F(AgentStandby, ANodeThatJoinsARunningJobHasOneAtOnceAndSaysWhenItIsReady) {
  limits_.warm_delay = std::chrono::hours(1);
  start();
  EXPECT_TRUE(hello_.warms);
  order(control::JoinTaken{.spare = false});
  turn();
  EXPECT_EQ(standbys_, 1);
  EXPECT_THAT(from_agent(), ElementsAre());
  standby_->send(control::WarmWorkersReady{});
  turn();
  EXPECT_THAT(from_agent(), ElementsAre(Is("WarmWorkersReady")));
  control::PrepareAttempt elastic = plan_of(4, 0, 0);
  elastic.elastic = true;
  order(elastic);
  EXPECT_EQ(started_, 0);
  EXPECT_THAT(standby_->receive(), ElementsAre(Is("PrepareAttempt")));
}

TEST_F(AgentStandby, WhereItEndsTheNodeIsAsReadyAsItCanBe) {
  start();
  order(control::JoinTaken{.spare = false});
  turn();
  ASSERT_EQ(standbys_, 1);
  ::kill(standby_pid_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(standby_pid_), &info, WEXITED | WNOWAIT), 0);
  standby_.reset();
  turn();
  EXPECT_THAT(from_agent(), ElementsAre(Is("WarmWorkersReady")));
  agent_->child_ended();
  control::PrepareAttempt elastic = plan_of(4, 0, 0);
  elastic.elastic = true;
  order(elastic);
  EXPECT_EQ(started_, 1);
}

TEST_F(AgentStandby, WhereNoneIsWantedNoneIsAwaited) {
  job_.options.warm_workers.clear();
  start();
  EXPECT_FALSE(hello_.warms);
  order(control::JoinTaken{.spare = false});
  turn();
  EXPECT_EQ(standbys_, 0);
}

TEST_F(AgentStandby, ASpareNodeHasOne) {
  start();
  order(control::JoinTaken{.spare = true});
  turn();
  EXPECT_EQ(standbys_, 1);
  control::PrepareAttempt elastic = plan_of(4, 0, 0);
  elastic.elastic = true;
  elastic.console_window_bytes = 0;  // unknown before
  order(elastic);
  EXPECT_EQ(started_, 0);
  EXPECT_THAT(standby_->receive(), ElementsAre(Is("PrepareAttempt")));
}

TEST_F(AgentStandby, TheEndOfTheJobEndsIt) {
  run(plan_of(3, 0, 1));
  ASSERT_EQ(standbys_, 1);
  order(control::Finish{.exit_status = 0});
  EXPECT_TRUE(agent_->finished());
  EXPECT_NE(::kill(standby_pid_, 0), 0);
}

}  // namespace
}  // namespace ddp::launcher::test
