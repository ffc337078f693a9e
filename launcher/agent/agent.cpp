#include "agent/agent.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/stderr_line.hpp"
#include "outcome/signal_name.hpp"
#include "workers/orphans.hpp"

namespace ddp::launcher {
namespace {

// An attempt process that has cleaned up has nothing left to do but to end.
constexpr std::chrono::seconds kAttemptEndLimit{3};
// For a coordinator to react to a signal, besides the time that ranks have: they may have to be killed, and their
// output to be delivered.
constexpr std::chrono::seconds kCoordinatorPatience{45};
// For processes to end after SIGKILL.
constexpr std::chrono::seconds kKillLimit{10};
// For an attempt process to clean up within the urgent drain time.
constexpr std::chrono::seconds kOrphanCleaningLimit{20};

std::string describe(const base::ProcessEnd& end) {
  return end.by_signal ? fmt::format("was ended by {}", signal_name(end.code))
                       : fmt::format("ended with exit code {}", end.code);
}

std::array<pid_t, 1> only(const std::unique_ptr<AttemptProcess>& attempt) {
  return {attempt ? attempt->process.pid() : 0};
}

}  // namespace

Agent::Agent(const NodeJob& job, control::Hello hello, control::Connection coordinator, EventLoop& loop)
    : job_(job), loop_(loop), coordinator_(std::move(coordinator)) {
  loop_.watch(coordinator_.fd(), [this] { read_coordinator(); });
  to_coordinator(hello);
}

Agent::~Agent() {
  if (coordinator_.open()) loop_.forget(coordinator_.fd());
  drop_attempt();
}

// ---- coordinator ----------------

void Agent::to_coordinator(const control::Message& message) {
  if (!coordinator_.open()) return;
  coordinator_.send(message);
  if (coordinator_.open()) loop_.want_write(coordinator_.fd(), coordinator_.wants_to_write());
}

void Agent::read_coordinator() {
  if (coordinator_.wants_to_write()) {
    coordinator_.flush();
    loop_.want_write(coordinator_.fd(), coordinator_.wants_to_write());
  }
  const int fd = coordinator_.fd();
  const std::vector<control::Message> messages = coordinator_.receive();
  if (!coordinator_.open()) loop_.forget(fd);
  for (const control::Message& message : messages) {
    if (!finished_) handle(message);
  }
  if (!coordinator_.open() && !finished_ && !orphaned_) coordinator_lost();
}

void Agent::handle(const control::Message& message) {
  if (const auto* plan = std::get_if<control::PrepareAttempt>(&message)) {
    begin(*plan);
  } else if (const auto* end = std::get_if<control::Finish>(&message)) {
    if (!end->message.empty()) base::write_stderr_line(fmt::format("ddprun: {}: {}", job_.host, end->message));
    exit_status_ = end->exit_status;
    drop_attempt();
    if (coordinator_.open()) loop_.forget(coordinator_.fd());
    coordinator_.close(Deadline::after(std::chrono::seconds(1)));
    finished_ = true;
  } else if (std::get_if<control::EndAttempt>(&message) != nullptr && !attempt_) {
    to_coordinator(control::AttemptCleaned{.attempt = attempt_number_, .left_behind = 0});
  } else {
    if (std::get_if<control::EndAttempt>(&message) != nullptr) ending_ = true;
    const auto* order = std::get_if<control::SignalRanks>(&message);
    if (order != nullptr && order->groups) ranks_told_ = true;
    to_attempt(message);
  }
}

void Agent::coordinator_lost() {
  orphaned_ = true;
  if (!attempt_ || cleaned_) {
    base::write_stderr_line(fmt::format("ddprun: {}: the connection to {} was lost: {}", job_.host, coordinator_.peer(),
                                        coordinator_.lost_because()));
    finished_ = true;
    return;
  }
  base::write_stderr_line(fmt::format("ddprun: {}: the connection to {} was lost ({}); ending the ranks of this node",
                                      job_.host, coordinator_.peer(), coordinator_.lost_because()));
  if (!ranks_told_) to_attempt(control::SignalRanks{.attempt = attempt_number_, .groups = true, .signal = SIGTERM});
  to_attempt(control::SignalRanks{.attempt = attempt_number_, .groups = true, .signal = SIGCONT});
  orphan_limit_ = Deadline::after(job_.options.shutdown_timeout);
  if (running_ == 0) to_attempt(orphaned_end());
}

control::EndAttempt Agent::orphaned_end() const {
  return {.attempt = attempt_number_,
          .drain_ms = static_cast<int>(std::chrono::milliseconds{control::kUrgentDrainTime}.count())};
}

void Agent::time_passed() {
  if (!orphan_limit_ || !orphan_limit_->expired()) return;
  if (!orphaned_) {
    if (coordinator_.open()) loop_.forget(coordinator_.fd());
    coordinator_.close(Deadline::after(std::chrono::seconds(0)));
    coordinator_lost();
    return;
  }
  orphan_limit_ = Deadline::after(kOrphanCleaningLimit);
  if (orphan_steps_ == 0) {
    to_attempt(control::SignalRanks{.attempt = attempt_number_, .groups = true, .signal = SIGKILL});
    to_attempt(orphaned_end());
  } else {
    finished_ = true;
  }
  ++orphan_steps_;
}

// ---- attempt ----------------

void Agent::to_attempt(const control::Message& message) {
  if (!attempt_ || !attempt_->connection.open()) return;
  control::Connection& connection = attempt_->connection;
  connection.send(message);
  if (connection.open()) loop_.want_write(connection.fd(), connection.wants_to_write());
}

void Agent::begin(const control::PrepareAttempt& plan) {
  drop_attempt();
  attempt_number_ = plan.attempt;
  cleaned_ = ending_ = ranks_told_ = false;
  if (job_.refusal) {
    cleaned_ = true;
    to_coordinator(control::AttemptFailed{
        .attempt = plan.attempt, .message = job_.refusal->message, .exit_status = job_.refusal->exit_status});
    return;
  }
  // A node without ranks will refuse, so there is nothing to prepare, and nothing to find wrong with the plan: the
  // reason of that node is the job's.
  if (std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const auto& node) { return node.nproc == 0; })) {
    cleaned_ = true;
    to_coordinator(control::AttemptPrepared{.attempt = plan.attempt, .store_port = 0});
    return;
  }
  try {
    attempt_ = std::make_unique<AttemptProcess>(start_attempt_process(job_, plan));
  } catch (const std::exception& error) {
    cleaned_ = true;
    to_coordinator(control::AttemptFailed{.attempt = plan.attempt, .message = error.what(), .exit_status = 1});
    return;
  }
  running_ = 0;
  loop_.watch(attempt_->connection.fd(), [this] { read_attempt(); });
}

void Agent::read_attempt() {
  control::Connection& connection = attempt_->connection;
  if (connection.wants_to_write()) {
    connection.flush();
    loop_.want_write(connection.fd(), connection.wants_to_write());
  }
  const int fd = connection.fd();
  const std::vector<control::Message> messages = connection.receive();
  if (!connection.open()) loop_.forget(fd);
  for (const control::Message& message : messages) {
    if (const auto* started = std::get_if<control::RanksStarted>(&message))
      running_ += static_cast<int>(started->pids.size());
    if (std::get_if<control::RankEnded>(&message) != nullptr) --running_;
    if (std::get_if<control::AttemptCleaned>(&message) != nullptr) cleaned_ = true;
    to_coordinator(message);
  }
  if (!attempt_->connection.open()) attempt_ended();
  if (orphaned_ && cleaned_) {
    finished_ = true;
  } else if (orphaned_ && running_ == 0) {
    to_attempt(orphaned_end());
  }
}

void Agent::attempt_ended() {
  if (cleaned_) return;
  attempt_->process.wait(Deadline::after(kAttemptEndLimit));
  const auto end = attempt_->process.end();
  const pid_t pid = attempt_->process.pid();
  drop_attempt();  // the workers go with their parent; what they had started is ours now
  end_orphans({}, Deadline::after(std::chrono::seconds(0)), Deadline::after(kKillLimit));
  cleaned_ = true;
  to_coordinator(
      control::AttemptFailed{.attempt = attempt_number_,
                             .message = fmt::format("ddprun's own process for the ranks on {} (pid {}) {}", job_.host,
                                                    pid, end ? describe(*end) : "stopped answering"),
                             .exit_status = 1,
                             .may_recover = true});
  if (ending_) to_coordinator(control::AttemptCleaned{.attempt = attempt_number_, .left_behind = 0});
}

void Agent::drop_attempt() {
  if (!attempt_) return;
  if (attempt_->connection.open()) loop_.forget(attempt_->connection.fd());
  if (cleaned_) attempt_->process.wait(Deadline::after(kAttemptEndLimit));
  attempt_.reset();
}

// ---- signals ----------------

void Agent::forward_signal(int signal, bool by_slurm) {
  to_attempt(control::SignalRanks{
      .attempt = attempt_number_, .groups = false, .signal = signal, .may_have_reached_ranks = by_slurm});
}

void Agent::ending_signal(int signal, bool by_slurm) {
  to_coordinator(control::SignalReceived{.signal = signal, .by_slurm = by_slurm});
  // A coordinator that has been stopped, or whose node hangs, must not keep this node's ranks alive.
  if (!orphaned_ && !orphan_limit_)
    orphan_limit_ = Deadline::after(job_.options.shutdown_timeout + kCoordinatorPatience);
}

void Agent::child_ended() { reap_orphans(only(attempt_)); }

}  // namespace ddp::launcher
