// The course of a job: agents join and are lost, attempts begin and end.
#include "coordinator/coordinator.hpp"

#include <signal.h>

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "outcome/signal_name.hpp"
#include "pmix_server/job_namespace.hpp"

namespace ddp::launcher {

namespace {

// Agents end orphans within about 12 s (see agent/attempt.cpp), besides the drain time.
constexpr std::chrono::seconds kCleaningLimit{20};
// The attempt process of an agent that swaps or reads its programs from a slow file system.
constexpr std::chrono::seconds kPreparingLimit{120};
constexpr std::chrono::seconds kFinishingLimit{5};
// Waiting gains nothing while restarts remain; on the last attempt, survivors may still report what they saw.
constexpr std::chrono::milliseconds kLastAttemptGrace{2'000};
constexpr std::chrono::milliseconds kNoGrace{0};

std::string random_suffix() {
  std::random_device source;
  return fmt::format("{:08x}", source());
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, EventLoop& loop, CoordinatorEvents events, Clock clock)
    : options_(std::move(options)),
      events_(std::move(events)),
      clock_(std::move(clock)),
      links_(
          loop, [this](int link, const control::Message& message) { handle(link, message); },
          [this](int link, const std::string& peer, const std::string& why) { lost(link, peer, why); }),
      membership_(options_.membership, clock_().steady),
      log_suffix_(random_suffix()) {
  if (options_.timeout) job_end_ = after(*options_.timeout);
}

// ---- agents come and go ----------------

void Coordinator::send_to_nodes(const control::Message& message) {
  for (const AttemptNode& node : attempt_->nodes()) links_.send(node.link, message);
}

void Coordinator::refuse(int link, const std::string& why) {
  events_.note(fmt::format("refused {}: {}", links_.peer(link), why));
  links_.send(link, control::Finish{.exit_status = 1, .message = why});
  links_.drop(link);
}

void Coordinator::lost(int link, const std::string& peer, const std::string& why) {
  if (phase_ == Phase::gathering) {
    if (!membership_.leave(link)) return events_.note(fmt::format("lost {} before it joined: {}", peer, why));
    const std::string what = fmt::format("{} was lost before the job started: {}", peer, why);
    if (membership_.rules().replaceable || membership_.give_up_one()) {
      events_.note(what);
    } else {
      agents_lost(what, 1);
    }
  } else if (AttemptNode* node = attempt_ ? attempt_->node_of(link) : nullptr) {
    fail_node(
        *node,
        fmt::format("the connection to ddprun's agent on {} (pid {}) was lost: {}", node->layout.host, node->pid, why),
        1);
    node->state = NodeState::lost;
  }
}

void Coordinator::agents_lost(const std::string& why, int exit_status) {
  if (phase_ == Phase::finishing || phase_ == Phase::finished) return;
  if (phase_ == Phase::gathering) {
    outcome_.nodes.push_back({.host = "",
                              .node_rank = -1,
                              .num_ranks = 0,
                              .message = fmt::format("{}; {}", why, membership_.describe()),
                              .exit_status = exit_status,
                              .time = clock_().wall});
    finish();
    return;
  }
  for (AttemptNode& node : attempt_->nodes()) {
    links_.drop(node.link);
    node.state = NodeState::lost;
  }
  const NodeFailure failure{.host = "all nodes",
                            .node_rank = 0,
                            .num_ranks = attempt_->world_size(),
                            .message = why,
                            .exit_status = exit_status,
                            .time = clock_().wall};
  if (phase_ == Phase::preparing) {
    outcome_.nodes.push_back(failure);
    end_attempt();
  } else if (phase_ == Phase::running) {
    follow(attempt_->supervisor().node_failed(failure, 0, clock_()));
  }
}

// ---- attempts ----------------

void Coordinator::begin_attempt(const Roster& roster) {
  phase_ = Phase::preparing;
  phase_end_ = after(kPreparingLimit);
  drain_time_ = control::kDrainTime;
  outcome_ = {};
  attempt_.emplace(roster);
  const std::vector<AttemptNode>& nodes = attempt_->nodes();
  control::PrepareAttempt plan{.epoch = attempt_->epoch(),
                               .restart_count = restarts_used_,
                               .max_restarts = options_.max_restarts,
                               .node_rank = 0,
                               .serve_store = false,
                               .run_id = options_.membership.run_id,
                               .name_space = make_namespace_name(nodes.front().layout.host, attempt_->epoch()),
                               .log_suffix = log_suffix_,
                               .terminal_out = options_.terminal_out,
                               .terminal_err = options_.terminal_err,
                               .nodes = attempt_->layout()};
  for (const AttemptNode& node : nodes) {
    plan.node_rank = node.rank;
    plan.serve_store = node.rank == 0;
    links_.send(node.link, plan);
  }
}

void Coordinator::start_ranks() {
  phase_ = Phase::running;
  phase_end_.reset();
  const bool last = restarts_used_ >= options_.max_restarts;
  send_to_nodes(attempt_->start({.failure_grace = options_.failure_grace.value_or(last ? kLastAttemptGrace : kNoGrace),
                                 .shutdown_timeout = options_.shutdown_timeout},
                                {.ending = options_.ending_signals, .forwarded = options_.forwarded_signals}));
}

void Coordinator::follow(const SignalOrders& orders, bool by_slurm) {
  for (const SignalOrder& order : orders) {
    const bool groups = order.target == SignalOrder::Target::groups;
    events_.detail(
        fmt::format("sending {} to the ranks{}", signal_name(order.signal), groups ? "' process groups" : ""));
    send_to_nodes(control::SignalRanks{
        .epoch = attempt_->epoch(), .groups = groups, .signal = order.signal, .may_have_reached_ranks = by_slurm});
  }
}

void Coordinator::signal_received(int signal, bool by_slurm) {
  const bool ends = std::find(options_.ending_signals.begin(), options_.ending_signals.end(), signal) !=
                    options_.ending_signals.end();
  events_.detail(fmt::format("received {}", signal_name(signal)));
  if (phase_ == Phase::running) {
    follow(attempt_->supervisor().signal_received(signal, clock_()), by_slurm);
  } else if (ends && phase_ == Phase::gathering) {
    outcome_.forwarded_signal = signal;
    finish();
  } else if (ends && phase_ == Phase::preparing) {
    outcome_.forwarded_signal = signal;
    end_attempt();
  } else if (ends) {
    // One cause may give several SIGTERMs: Slurm signals this process and its agents.
    const bool again = drain_time() < control::kDrainTime;
    if (phase_ == Phase::cleaning && !outcome_.success()) outcome_.end_by(signal);  // no restart is wanted
    shorten_drain(again && signal == SIGINT ? std::chrono::seconds(0) : control::kUrgentDrainTime);
  }
}

void Coordinator::end_attempt() {
  phase_ = Phase::cleaning;
  send_end();
}

void Coordinator::send_end() {
  phase_end_ = after(kCleaningLimit + drain_time());
  send_to_nodes(control::EndAttempt{.epoch = attempt_->epoch(), .drain_ms = static_cast<int>(drain_time().count())});
}

std::chrono::milliseconds Coordinator::drain_time() const {
  const bool ended_by_user = outcome_.forwarded_signal != 0 || outcome_.timed_out;
  return ended_by_user ? std::min<std::chrono::milliseconds>(drain_time_, control::kUrgentDrainTime) : drain_time_;
}

void Coordinator::shorten_drain(std::chrono::milliseconds limit) {
  if (limit >= drain_time_) return;
  drain_time_ = limit;
  if (phase_ == Phase::cleaning) send_end();
}

void Coordinator::conclude() {
  for (const AttemptNode& node : attempt_->nodes()) {
    if (!node.settled()) {
      events_.note(fmt::format("the agent on {} (pid {}) does not answer; its processes may still be running",
                               node.layout.host, node.pid));
      links_.drop(node.link);
    }
    if (node.state != NodeState::cleaned) membership_.leave(node.link);
  }
  const int restarts_left = options_.max_restarts - restarts_used_;
  const bool may_restart = outcome_.failed_by_itself() && !restart_is_pointless_ && restarts_left > 0;
  if (const auto roster = may_restart ? membership_.next(clock_().steady) : std::nullopt) {
    events_.restarting(outcome_, attempt_->epoch(), restarts_left);
    ++restarts_used_;
    begin_attempt(*roster);
  } else {
    finish();
  }
}

int Coordinator::exit_status() const {
  const int status = outcome_.exit_status();
  return options_.torchrun_exit_codes && status != 0 ? 1 : status;
}

void Coordinator::finish() {
  phase_ = Phase::finishing;
  phase_end_ = after(kFinishingLimit);
  links_.stop_listening();
  links_.send_to_all(control::Finish{.exit_status = exit_status(), .message = {}});
}

// ---- time ----------------

bool Coordinator::expired(const std::optional<Deadline>& deadline) const {
  return deadline && clock_().steady >= deadline->when();
}

std::optional<Deadline> Coordinator::next_deadline() const {
  std::optional<Deadline> next = phase_end_;
  const auto consider = [&next](const std::optional<Deadline>& other) {
    if (other) next = next ? earlier(*next, *other) : other;
  };
  if (phase_ == Phase::gathering) consider(membership_.next_deadline());
  if (phase_ == Phase::running) consider(attempt_->supervisor().next_deadline());
  if (phase_ < Phase::cleaning || (phase_ == Phase::cleaning && drain_time() == control::kDrainTime))
    consider(job_end_);
  consider(links_.next_deadline());
  return next;
}

void Coordinator::time_passed() {
  links_.time_passed();
  if (expired(job_end_)) job_timed_out();
  if (phase_ == Phase::gathering) {
    if (const auto roster = membership_.next(clock_().steady)) begin_attempt(*roster);
  }
  give_up_waiting();
  if (phase_ == Phase::running) {
    follow(attempt_->supervisor().time_passed(clock_()));
    if (attempt_->supervisor().done()) {
      outcome_ = attempt_->supervisor().outcome();
      end_attempt();
    }
  }
  if (phase_ == Phase::cleaning && (expired(phase_end_) || attempt_->settled())) conclude();
  if (phase_ == Phase::finishing && (links_.empty() || expired(phase_end_))) phase_ = Phase::finished;
}

void Coordinator::job_timed_out() {
  switch (phase_) {
    case Phase::gathering:
    case Phase::preparing:
      outcome_.timed_out = true;
      job_end_.reset();
      phase_ == Phase::gathering ? finish() : end_attempt();
      break;
    case Phase::running:
      job_end_.reset();
      follow(attempt_->supervisor().job_timed_out(clock_()));
      break;
    case Phase::cleaning: shorten_drain(control::kUrgentDrainTime); break;  // a restart would time out at once
    case Phase::finishing:
    case Phase::finished: break;
  }
}

void Coordinator::give_up_waiting() {
  using std::chrono::duration_cast, std::chrono::seconds;
  if (phase_ == Phase::gathering && membership_.failed(clock_().steady)) {
    agents_lost(fmt::format("not all nodes joined within {} s",
                            duration_cast<seconds>(membership_.rules().join_timeout).count()),
                1);
  }
  if (phase_ != Phase::preparing || !expired(phase_end_)) return;
  for (AttemptNode& node : attempt_->nodes()) {
    if (node.state != NodeState::preparing) continue;
    return fail_node(node,
                     fmt::format("ddprun's agent on {} (pid {}) did not prepare its ranks within {} s",
                                 node.layout.host, node.pid, kPreparingLimit.count()),
                     1);
  }
}

}  // namespace ddp::launcher
