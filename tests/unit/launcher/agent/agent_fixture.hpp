// An Agent between a coordinator and an attempt process that are the test itself. The attempt process is a child that
// does nothing, so that its end can be chosen.
#pragma once

#include <sys/prctl.h>
#include <sys/syscall.h>

#include "agent/agent.hpp"
#include "support/left_children.hpp"

namespace ddp::launcher::test {

using Messages = std::vector<control::Message>;

inline constexpr int kEpoch = 3;
inline constexpr int kRanks = 2;

MATCHER_P(Is, name, "") { return std::string(control::name_of(arg)) == name; }

inline control::PrepareAttempt plan(int epoch = kEpoch) {
  return {.epoch = epoch,
          .max_restarts = 0,
          .node_rank = 0,
          .serve_store = false,
          .run_id = "run",
          .name_space = "space",
          .console_window_bytes = 1,
          .nodes = {{.host = "n1", .nproc = kRanks, .role = "default", .addresses = {"127.0.0.1"}}}};
}

inline control::Message signal_ranks(int signal, bool groups, bool by_slurm = false) {
  return control::SignalRanks{.epoch = kEpoch, .groups = groups, .signal = signal, .may_have_reached_ranks = by_slurm};
}

inline control::RankEnded rank_ended(int local_rank) { return {.epoch = kEpoch, .local_rank = local_rank}; }
inline control::AttemptCleaned cleaned() { return {.epoch = kEpoch}; }

struct AgentFixture : ::testing::Test {
  AgentFixture() {
    job_.host = "n1";
    job_.options.shutdown_timeout = std::chrono::seconds(1000);
    limits_.attempt_end = std::chrono::seconds(0);  // the fake never ends by itself
  }
  ~AgentFixture() override {
    agent_.reset();
    EXPECT_EQ(ddp::test::left_children(), "");
  }

  /// With what job_, limits_ and child_ are now.
  void start() {
    control::ConnectionPair pair = control::make_pair();
    coordinator_.emplace(std::move(pair.first), "the agent");
    agent_ = std::make_unique<Agent>(
        job_, control::Hello{.version = "1", .run_id = "run", .host = "n1"},
        control::Connection{std::move(pair.second), "the coordinator at n0"}, loop_,
        [this](const NodeJob&, const control::PrepareAttempt& received) { return start_fake(received); }, limits_,
        [this](const NodeJob&, const control::PrepareAttempt& like, bool) { return start_standby(like); });
    turn();
    const Messages first = from_agent();
    ASSERT_THAT(first, ::testing::ElementsAre(Is("Hello")));
    hello_ = std::get<control::Hello>(first.front());
  }

  /// start(), and an attempt is prepared.
  void prepare() {
    start();
    order(plan());
    ASSERT_TRUE(attempt_);
    report(control::AttemptPrepared{.epoch = kEpoch, .store_port = 7});
    ASSERT_THAT(from_agent(), ::testing::ElementsAre(Is("AttemptPrepared")));
  }
  /// prepare(), and the ranks run.
  void run_ranks() {
    prepare();
    report(control::RanksStarted{.epoch = kEpoch, .pids = std::vector<std::int64_t>(kRanks, 1)});
    ASSERT_THAT(from_agent(), ::testing::ElementsAre(Is("RanksStarted")));
  }
  /// run_ranks(), and the attempt is told to end.
  void end_ranks() {
    run_ranks();
    order(control::EndAttempt{.epoch = kEpoch});
    ASSERT_THAT(to_attempt(), ::testing::ElementsAre(Is("EndAttempt")));
  }
  /// end_ranks(), and the attempt process has done so.
  void clean() {
    end_ranks();
    report(cleaned());
    ASSERT_THAT(from_agent(), ::testing::ElementsAre(Is("AttemptCleaned")));
  }

  /// With its attempt process: another start() may follow.
  void end_agent() {
    agent_.reset();
    attempt_.reset();
    console_.reset();
  }

  void turn() {
    loop_.run_once(Deadline::after(std::chrono::milliseconds(0)));
    agent_->time_passed();
  }
  /// From the coordinator.
  void order(const control::Message& message) {
    coordinator_->send(message);
    turn();
  }
  /// From the attempt process.
  void report(const control::Message& message) {
    attempt_->send(message);
    turn();
  }
  void lose_coordinator() {
    coordinator_.reset();
    turn();
  }
  /// The attempt process ends, and its connection with it.
  void lose_attempt(int signal = SIGKILL) {
    ::kill(attempt_pid_, signal);
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(attempt_pid_), &info, WEXITED | WNOWAIT), 0);
    attempt_.reset();
    turn();
  }

  Messages from_agent() { return coordinator_->receive(); }
  Messages to_attempt() { return attempt_ ? attempt_->receive() : Messages{}; }
  Messages to_console() { return console_ ? console_->receive() : Messages{}; }
  bool attempt_is_alive() const { return ::kill(attempt_pid_, 0) == 0; }

  NodeJob job_;
  AgentLimits limits_;
  control::Hello hello_;                 ///< what the agent has said
  std::function<void()> child_ = [] {};  ///< what the attempt process does before it waits
  int started_ = 0;                      ///< attempt processes
  stream::EventLoop loop_;
  std::optional<control::Connection> coordinator_, attempt_;  ///< the other ends of the agent's connections
  std::optional<control::Connection> console_;                ///< the same of the ranks' output, where the plan has it
  pid_t attempt_pid_ = 0;
  std::unique_ptr<Agent> agent_;
  int standbys_ = 0;  ///< processes for a later attempt
  pid_t standby_pid_ = 0;
  std::optional<control::Connection> standby_;  ///< as attempt_, until the process has become an attempt's

 private:
  AttemptProcess start_fake(const control::PrepareAttempt& received) {
    EXPECT_EQ(received.name_space, "space");
    ++started_;
    return fork_fake(received, attempt_pid_, attempt_);
  }
  AttemptProcess start_standby(const control::PrepareAttempt& like) {
    ++standbys_;
    return fork_fake(like, standby_pid_, standby_);
  }

  AttemptProcess fork_fake(const control::PrepareAttempt& received, pid_t& its_pid,
                           std::optional<control::Connection>& its_connection) {
    control::ConnectionPair pair = control::make_pair();
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ready[1], 3);
      ::syscall(SYS_close_range, 4U, ~0U, 0U);
      child_();
      ::close(3);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 0) << "the child is not ready";
    ::close(ready[0]);
    its_pid = pid;
    its_connection.emplace(std::move(pair.second), "the agent");
    AttemptProcess result{.connection = control::Connection{std::move(pair.first), "the attempt"},
                          .process = base::ChildProcess{pid}};
    if (received.console_window_bytes > 0) {
      control::ConnectionPair console = control::make_pair();
      console_.emplace(std::move(console.second), "the agent");
      result.console.emplace(std::move(console.first), "the attempt");
    }
    return result;
  }
};

}  // namespace ddp::launcher::test
