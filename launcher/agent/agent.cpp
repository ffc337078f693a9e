#include "agent/agent.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "workers/orphans.hpp"

namespace ddp::launcher {
namespace {

std::string describe(const base::ProcessEnd& end) {
  return end.by_signal ? fmt::format("was ended by {}", base::signal_name(end.code))
                       : fmt::format("ended with exit code {}", end.code);
}

control::Connection forwarding(control::Connection connection) {
  connection.keep_bulk_encoded();
  return connection;
}

}  // namespace

Agent::Agent(const NodeJob& job, const control::Hello& hello, control::Connection coordinator, stream::EventLoop& loop,
             AttemptStarter start_attempt, AgentLimits limits, StandbyStarter start_standby)
    : job_(job),
      hello_(hello),
      loop_(loop),
      start_attempt_(std::move(start_attempt)),
      limits_(limits),
      coordinator_(
          loop, forwarding(std::move(coordinator)), [this](const control::Message& message) { handle(message); },
          [this](const std::string& why) { coordinator_lost(why); }),
      standby_(job, loop, std::move(start_standby), limits.warm_delay,
               [this](const control::WarmWorkersReady& ready) { to_coordinator(ready); }),
      heartbeat_(loop, job.peers.beat, [this] { beat(); }) {
  hello_.warms = standby_.wanted_by_spare();
  to_coordinator(hello_);
}

Agent::~Agent() { drop_attempt(); }

// ---- coordinator ----------------

void Agent::handle(const control::Message& message) {
  if (const auto* plan = std::get_if<control::PrepareAttempt>(&message)) {
    begin(*plan);
  } else if (const auto* end = std::get_if<control::Finish>(&message)) {
    if (!end->message.empty()) base::write_stderr_line(fmt::format("ddprun: {}: {}", job_.host, end->message));
    exit_status_ = end->exit_status;
    if (job_.refusal && epoch_ < 0 && exit_status_ != 0) {  // the coordinator has not asked for it
      base::write_stderr_line(fmt::format("ddprun: {}: {}", job_.host, job_.refusal->message));
      exit_status_ = job_.refusal->exit_status;
    }
    const bool left_processes = attempt_ && !cleaned_;
    standby_.drop();
    drop_attempt();
    if (left_processes) end_left_processes(limits_.final_kill);
    coordinator_.close(Deadline::after(std::chrono::seconds(1)));
    finished_ = true;
  } else if (const auto* taken = std::get_if<control::ConsoleTaken>(&message)) {
    if (console_ && taken->epoch == epoch_) console_->send(message);
  } else if (const auto* input = std::get_if<control::Input>(&message)) {
    if (input_) input_->add(input->data, input->end);
  } else if (const auto* taken_in = std::get_if<control::JoinTaken>(&message)) {
    const auto rest = std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(taken_in->rest_ms)).count();
    base::write_stderr_line(fmt::format(
        "ddprun: {}: the job is running; {}", job_.host,
        taken_in->spare ? "it has all its nodes, so this one is a spare for one that is lost"
        : rest > 0      ? fmt::format("this node was lost again and again, so it waits {} s before it joins", rest)
        : hello_.warms  ? "this node joins once its warm workers are ready, when its ranks have ended to start again"
                        : "this node joins when its ranks have ended to start again"));
    standby_.spare(hello_, !taken_in->spare);
  } else if (const auto* resting = std::get_if<control::Resting>(&message)) {
    coordinator_rests_ = resting->rests;
  } else if (const auto* end_attempt = std::get_if<control::EndAttempt>(&message);
             end_attempt != nullptr && !attempt_) {
    to_coordinator(control::AttemptCleaned{.epoch = end_attempt->epoch});
  } else {
    if (metrics_) metrics_->note(message);
    pass_on(message);
  }
}

void Agent::pass_on(const control::Message& message) {
  if (std::get_if<control::EndAttempt>(&message) != nullptr) {
    ending_ = true;
    standby_.ranks_end();
    if (!attempt_asked_) attempt_asked_ = Heartbeat::Clock::now();
  }
  const auto* order = std::get_if<control::SignalRanks>(&message);
  if (order == nullptr) return to_attempt(message);
  if (order->groups && (order->signal == SIGSTOP || order->signal == SIGCONT)) {
    note_rest(order->signal == SIGSTOP);
  } else if (order->groups) {
    ranks_told_ = true;
  }
  if (order->signal == SIGKILL && !attempt_asked_) attempt_asked_ = Heartbeat::Clock::now();
  step_signals_.add(*order);
  pass_settled_orders();
}

/// If Slurm also signals this step, the attempt process must check whether the ranks have received the signal.
void Agent::pass_settled_orders() {
  for (auto& [order, reached] : step_signals_.take_settled()) {
    order.may_have_reached_ranks = reached;
    to_attempt(order);
  }
}

void Agent::leave_coordinator(const std::string& why) {
  coordinator_.close(Deadline::after(std::chrono::seconds(0)));
  coordinator_lost(why);
}

void Agent::coordinator_lost(const std::string& why) {
  if (std::exchange(orphaned_, true)) return;
  console_.reset();
  if (!attempt_ || cleaned_) {
    base::write_stderr_line(
        fmt::format("ddprun: {}: the connection to {} was lost: {}", job_.host, coordinator_.peer(), why));
    finished_ = true;
    return;
  }
  base::write_stderr_line(fmt::format("ddprun: {}: the connection to {} was lost ({}); ending the ranks of this node",
                                      job_.host, coordinator_.peer(), why));
  if (!ranks_told_) to_attempt(control::SignalRanks{.epoch = epoch_, .groups = true, .signal = SIGTERM});
  stop_ranks(false);
  orphan_limit_ = Deadline::after(job_.options.shutdown_timeout);
  finish_as_orphan();
}

control::EndAttempt Agent::orphaned_end() const {
  return {.epoch = epoch_, .drain_ms = static_cast<int>(std::chrono::milliseconds{control::kUrgentDrainTime}.count())};
}

std::optional<Deadline> Agent::next_deadline() const {
  std::optional<Deadline> next = orphan_limit_;
  for (const auto& other : {step_signals_.next_deadline(), answer_due(), standby_.next_deadline()}) {
    if (other) next = next ? earlier(*next, *other) : other;
  }
  return next;
}

/// When the attempt process must have shown life after an order that ends it.
std::optional<Deadline> Agent::answer_due() const {
  if (!attempt_ || cleaned_ || !attempt_asked_ || job_.options.dry_run) return std::nullopt;
  return heartbeat_.silent_at(std::max(attempt_->last_heard(), *attempt_asked_), job_.peers.end_answer);
}

void Agent::time_passed() {
  pass_settled_orders();
  standby_.time_passed();
  if (const auto due = answer_due(); due && due->expired()) attempt_lost(true);
  if (!orphan_limit_ || !orphan_limit_->expired()) return;
  if (!orphaned_) return leave_coordinator("it did not react to a signal");
  orphan_limit_ = Deadline::after(limits_.orphan_cleaning);
  if (orphan_steps_ == 0) {
    if (!attempt_asked_) attempt_asked_ = Heartbeat::Clock::now();
    to_attempt(control::SignalRanks{.epoch = epoch_, .groups = true, .signal = SIGKILL});
    to_attempt(orphaned_end());
  } else {
    finished_ = true;
  }
  ++orphan_steps_;
}

// ---- attempt ----------------

void Agent::to_attempt(const control::Message& message) {
  if (attempt_) attempt_->send(message);
}

void Agent::begin(const control::PrepareAttempt& plan) {
  drop_attempt();
  epoch_ = plan.epoch;
  leave_grace_ = std::chrono::milliseconds(plan.leave_grace_ms);
  running_ = 0;
  cleaned_ = started_ = ending_ = ranks_told_ = false;
  note_rest(false);  // a standby's process has said nothing since it started
  attempt_asked_.reset();
  step_signals_ = StepSignals{};
  if (job_.refusal) {
    cleaned_ = true;
    to_coordinator(control::AttemptFailed{
        .epoch = plan.epoch, .message = job_.refusal->message, .exit_status = job_.refusal->exit_status});
    return;
  }
  // A node without ranks will refuse, and its reason becomes the job's: prepare nothing, and do not reject the plan.
  if (std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const auto& node) { return node.nproc == 0; })) {
    cleaned_ = true;
    to_coordinator(control::AttemptPrepared{.epoch = plan.epoch, .store_port = 0});
    return;
  }
  try {
    if (!metrics_) serve_metrics();
    metrics_->begin(metrics_of(plan));
    if (plan.input && !input_) {
      standby_.drop();  // it has another standard input
      input_ = std::make_unique<InputFeed>(
          loop_, [this](std::int64_t bytes) { to_coordinator(control::InputTaken{.bytes = bytes}); }, STDIN_FILENO);
    }
    std::optional<AttemptProcess> ready = standby_.take(plan);
    AttemptProcess started = ready ? std::move(*ready) : start_attempt_(job_, plan);
    attempt_process_ = std::move(started.process);
    attempt_ = std::make_unique<LoopConnection>(
        loop_, forwarding(std::move(started.connection)),
        [this](const control::Message& message) { from_attempt(message); },
        [this](const std::string&) { attempt_lost(false); });
    if (started.console) watch_console(std::move(*started.console));
  } catch (const std::exception& error) {
    cleaned_ = true;
    to_coordinator(control::AttemptFailed{.epoch = plan.epoch, .message = error.what(), .exit_status = 1});
    return;
  }
}

void Agent::serve_metrics() {
  metrics_ = std::make_unique<NodeMetrics>(metrics_of(job_), loop_);
  const std::string url = metrics_->url();
  if (!url.empty() && (job_.options.metrics.port == 0 || job_.options.verbose))
    base::write_stderr_line(fmt::format("ddprun: {}: metrics at {}", job_.host, url));
}

/// Its end, like that of the attempt process, ends the output.
void Agent::watch_console(control::Connection connection) {
  console_ = std::make_unique<LoopConnection>(
      loop_, forwarding(std::move(connection)), [this](const control::Message& message) { to_coordinator(message); },
      [](const std::string&) {});
}

void Agent::from_attempt(const control::Message& message) {
  if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    started_ = true;
    standby_.ranks_started();
    running_ += static_cast<int>(started->pids.size());
  }
  if (std::get_if<control::RankEnded>(&message) != nullptr) --running_;
  if (std::get_if<control::AttemptCleaned>(&message) != nullptr) {
    cleaned_ = true;
    if (input_) input_->report();
  }
  metrics_->note(message);
  to_coordinator(message);
  finish_as_orphan();
}

void Agent::attempt_lost(bool silent) {
  if (!cleaned_) {
    if (silent) attempt_process_.signal(SIGKILL);
    const bool gone = wait_for_attempt(silent ? limits_.final_kill : limits_.attempt_end);
    std::string end = "stopped answering";
    if (!silent && attempt_process_.end()) end = describe(*attempt_process_.end());
    const pid_t pid = attempt_process_.pid();
    if (silent && !gone) attempt_process_.release();  // it hangs in the kernel
    drop_attempt();                                   // kills the workers, too; this process adopts their orphans
    end_left_processes(attempt_asked_ ? limits_.final_kill : limits_.kill);
    cleaned_ = true;
    if (input_) input_->report();
    to_coordinator(control::AttemptFailed{
        .epoch = epoch_,
        .message = fmt::format("ddprun's own process for the ranks on {} (pid {}) {}", job_.host, pid, end),
        .exit_status = 1,
        .may_recover = true});
    if (ending_) to_coordinator(control::AttemptCleaned{.epoch = epoch_});
  }
  finish_as_orphan();
}

bool Agent::wait_for_attempt(std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  while (!attempt_process_.wait(earlier(deadline, Deadline::after(Heartbeat::kPause)))) {
    if (deadline.expired()) return false;
    if (heartbeat_.take_beat()) coordinator_.beat();
  }
  return true;
}

/// Ends orphans of the attempt process, now children of this one.
void Agent::end_left_processes(std::chrono::milliseconds limit) {
  end_orphans(std::array{standby_.pid()}, Deadline::after(std::chrono::seconds(0)), Deadline::after(limit), [this] {
    if (heartbeat_.take_beat()) coordinator_.beat();
  });
}

void Agent::finish_as_orphan() {
  if (!orphaned_) return;
  if (cleaned_) {
    finished_ = true;
  } else if (running_ == 0) {
    to_attempt(orphaned_end());
  }
}

void Agent::drop_attempt() {
  if (cleaned_) wait_for_attempt(limits_.attempt_end);
  attempt_process_.kill();
  attempt_.reset();
  if (console_) console_->read();  // its last lines
  console_.reset();
  attempt_process_ = {};
}

// ---- life ----------------

void Agent::beat() {
  if (!coordinator_rests_) coordinator_.beat();  // it would not read them
  if (!orphaned_ && !coordinator_rests_ && coordinator_.open()) {
    const auto heard = coordinator_.last_heard();
    if (heartbeat_.silence(heard) >= job_.peers.silence()) {
      leave_coordinator("it no longer sends anything");
    } else if (coordinator_asked_ && heartbeat_.silence(std::max(heard, *coordinator_asked_)) >= job_.peers.answer) {
      leave_coordinator("it did not react to a signal");
    }
  }
  // A dry run writes for as long as its reader takes, or until the agent speaks.
  if (!attempt_ || cleaned_ || job_.options.dry_run) return;
  if (const auto progress = metrics_->progress_due()) to_coordinator(*progress);
  attempt_->beat();
  if (ranks_rest_) return;  // it shows no life then, and this process could not read it if Ctrl-Z had stopped it
  const auto heard = std::max(attempt_->last_heard(), ranks_resumed_);
  const auto limit = started_ ? std::max(job_.peers.silence(), limits_.attempt_silence) : limits_.start;
  if (heartbeat_.silence(heard) >= limit) attempt_lost(true);
}

// ---- signals ----------------

void Agent::suspend(bool tell) {
  if (tell) to_coordinator(control::Resting{.rests = true});
  stop_ranks(true);
}

/// If the coordinator knows of the stop, it resumes the ranks of all nodes.
void Agent::resume(bool tell) {
  if (tell) to_coordinator(control::Resting{.rests = false});
  if (!tell || orphaned_) stop_ranks(false);
}

void Agent::stop_ranks(bool stop) {
  note_rest(stop);
  to_attempt(control::SignalRanks{.epoch = epoch_, .groups = true, .signal = stop ? SIGSTOP : SIGCONT});
}

void Agent::note_rest(bool ranks_rest) {
  if (!ranks_rest) ranks_resumed_ = Heartbeat::Clock::now();
  ranks_rest_ = ranks_rest;
}

void Agent::forward_signal(int signal, bool by_slurm) {
  if (by_slurm) step_signals_.arrived(signal);
  pass_on(control::SignalRanks{.epoch = epoch_, .groups = false, .signal = signal, .may_have_reached_ranks = by_slurm});
}

void Agent::ending_signal(int signal, bool by_slurm) {
  if (by_slurm) step_signals_.arrived(signal);
  pass_settled_orders();
  if (!coordinator_asked_) coordinator_asked_ = Heartbeat::Clock::now();
  to_coordinator(control::SignalReceived{.signal = signal, .by_slurm = by_slurm});
  // A stopped coordinator, or one on a hanging node, must not keep this node's ranks alive.
  if (!orphaned_ && !orphan_limit_)
    orphan_limit_ = Deadline::after((by_slurm ? std::chrono::milliseconds(0) : leave_grace_) +
                                    job_.options.shutdown_timeout + limits_.coordinator_patience);
}

void Agent::child_ended() { reap_orphans(std::array{attempt_process_.pid(), standby_.pid()}); }

}  // namespace ddp::launcher
