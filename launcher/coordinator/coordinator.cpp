// The course of a job: agents join and are lost, attempts begin and end.
#include "coordinator/coordinator.hpp"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/process.hpp"
#include "outcome/group_verdict.hpp"
#include "pmix_server/job_namespace.hpp"

namespace ddp::launcher {
namespace {

// The attempt process of an agent that swaps or reads its programs from a slow file system.
constexpr std::chrono::seconds kPreparingLimit{120};
// Waiting gains nothing while restarts remain; on the last attempt, survivors may still report what they saw.
constexpr std::chrono::milliseconds kLastAttemptGrace{2'000};
constexpr std::chrono::milliseconds kNoGrace{0};
// For nodes' answers to arrive.
constexpr std::chrono::seconds kStackReserve{2};
// What all nodes may have sent to a slow console of each stream, in all, and what a node may at least and at most.
constexpr std::int64_t kConsoleBytes = std::int64_t{16} << 20U;
constexpr std::int64_t kLeastWindowBytes = std::int64_t{1} << 10U;
constexpr std::int64_t kMostWindowBytes = std::int64_t{512} << 10U;
// What nobody should wait for without a word.
constexpr std::chrono::seconds kWaitToldAfter{5};
// Of a rank that frees much memory, where a restart needs what it holds.
constexpr std::chrono::seconds kRestartKillPatience{10};

std::string random_suffix() {
  std::random_device source;
  return fmt::format("{:08x}", source());
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, stream::EventLoop& loop, CoordinatorEvents events, Clock clock)
    : options_(std::move(options)),
      events_(std::move(events)),
      clock_(std::move(clock)),
      links_(
          loop, options_.peers, [this](int link, const control::Message& message) { handle(link, message); },
          [this](int link, const AgentLinks::Loss& loss) { lost(link, loss); }),
      membership_(options_.membership, clock_().steady),
      log_suffix_(random_suffix()) {
  if (options_.timeout) job_end_ = after(*options_.timeout);
  wait_told_at_ = after(kWaitToldAfter);
}

// ---- agents come and go ----------------

void Coordinator::listen(std::unique_ptr<control::Listener> listener) {
  listening_at_ = listener->addresses();
  links_.listen(std::move(listener));
}

void Coordinator::send_to_nodes(const control::Message& message) {
  const control::Encoded once = control::encode_once(message);
  for (const AttemptNode& node : attempt_->nodes()) links_.send(node.link, once);
}

void Coordinator::refuse(int link, const std::string& why) {
  events_.note(fmt::format("refused {}: {}", links_.peer(link), why));
  links_.send(link, control::Finish{.exit_status = 1, .message = why});
  links_.drop(link);
}

void Coordinator::lost(int link, const AgentLinks::Loss& loss) {
  if (loss.rested && !links_.any_resting()) stop_ranks(false);
  if (allocations_.erase(link) > 0) return;  // its agents speak for themselves
  if (phase_ == Phase::gathering) {
    if (!membership_.lost(link)) return events_.note(fmt::format("lost {} before it joined: {}", loss.peer, loss.why));
    const std::string what = fmt::format("{} was lost before the job started: {}", loss.peer, loss.why);
    if (membership_.rules().replaceable || membership_.will_not_come()) {
      events_.note(what);
    } else {
      agents_lost(what, 1);
    }
  } else if (phase_ == Phase::waiting) {
    if (membership_.lost(link)) events_.note(fmt::format("{} was lost: {}", loss.peer, loss.why));
  } else if (phase_ >= Phase::finishing) {
    return;  // it has been told to leave
  } else if (AttemptNode* node = attempt_ ? attempt_->node_of(link) : nullptr) {
    const std::string what = fmt::format("the connection to ddprun's agent on {} (pid {}) was lost: {}",
                                         node->layout.host, node->pid, loss.why);
    if (loss.silent && !in(AttemptPhase::cleaning)) events_.note(what);  // the ranks of the others may take long to end
    fail_node(*node, what, 1);
    node->state = NodeState::lost;
    if (loss.silent) name_silent(*node);
  } else if (membership_.lost(link)) {
    events_.note(fmt::format("{} was lost while it waited for a place: {}", loss.peer, loss.why));
  }
}

bool Coordinator::agents_missing(std::size_t count, const std::string& why) {
  if (phase_ != Phase::gathering) return false;
  bool goes_on = true;
  for (std::size_t i = 0; i < count; ++i) goes_on = membership_.will_not_come() && goes_on;
  goes_on ? events_.note(why) : fail_gathering(why, 1);
  return goes_on;
}

void Coordinator::fail_gathering(const std::string& message, int exit_status) {
  outcome_.nodes.push_back({.host = "",
                            .node_rank = -1,
                            .num_ranks = 0,
                            .message = message,
                            .exit_status = exit_status,
                            .time = clock_().wall});
  finish();
}

void Coordinator::agent_left(std::int64_t order, const std::string& why) {
  if (const auto link = membership_.agent_of(order)) links_.lose(*link, why);
}

void Coordinator::agents_lost(const std::string& why, int exit_status, const std::string& hint) {
  if (phase_ == Phase::finishing || phase_ == Phase::finished) return;
  if (phase_ == Phase::gathering)
    return fail_gathering(fmt::format("{}; {}{}{}", why, membership_.describe(), hint.empty() ? "" : "; ", hint),
                          exit_status);
  if (phase_ == Phase::waiting) return finish();
  for (AttemptNode& node : attempt_->nodes()) {
    links_.is_silent(node.link) ? links_.abandon(node.link) : links_.drop(node.link);
    node.state = NodeState::lost;
  }
  const NodeFailure failure{.host = "all nodes",
                            .node_rank = 0,
                            .num_ranks = attempt_->world_size(),
                            .message = why,
                            .exit_status = exit_status,
                            .time = clock_().wall};
  if (in(AttemptPhase::preparing)) {
    outcome_.nodes.push_back(failure);
    end_attempt();
  } else if (in(AttemptPhase::running)) {
    follow(attempt_->supervisor().node_failed(failure, 0, clock_()));
  }
}

// ---- attempts ----------------

void Coordinator::begin_attempt(const Roster& roster) {
  if (events_.before_attempt) events_.before_attempt();
  phase_ = Phase::attempting;
  phase_end_ = after(kPreparingLimit);
  outcome_ = {};
  state_ = {};
  state_.hang = diagnostics::HangInquiry{options_.hang_report_after, options_.end_hung};
  std::set<int> known;  // members that have run before
  if (attempt_)
    std::transform(attempt_->nodes().begin(), attempt_->nodes().end(), std::inserter(known, known.end()),
                   [](const AttemptNode& node) { return node.member; });
  const bool first = !attempt_;
  attempt_.emplace(roster);
  for (AttemptNode& node : attempt_->nodes()) node.newcomer = !first && !known.contains(node.member);
  const std::vector<AttemptNode>& nodes = attempt_->nodes();
  const auto num_nodes = static_cast<std::int64_t>(nodes.size());
  const bool job_console = options_.job_console && num_nodes > 1;
  const std::int64_t window = std::clamp(kConsoleBytes / num_nodes, kLeastWindowBytes, kMostWindowBytes);
  control::PrepareAttempt plan{
      .epoch = attempt_->epoch(),
      .restart_count = membership_.restarts_used(),
      .max_restarts = options_.membership.max_restarts,
      .node_rank = 0,
      .serve_store = false,
      .run_id = options_.membership.run_id,
      .name_space = make_namespace_name(nodes.front().layout.host, attempt_->epoch()),
      .log_name = options_.log_name,
      .log_suffix = log_suffix_,
      .terminal_out = options_.terminal_out,
      .terminal_err = options_.terminal_err,
      .console_window_bytes = job_console ? window : 0,
      .still_after_ms = state_.hang.looks_after().value_or(std::chrono::milliseconds(0)).count(),
      .nodes_lost = nodes_lost_,
      .input = false,
      .progress_ms = options_.progress_interval.count(),
      .elastic = membership_.rules().elastic(),
      .leave_grace_ms = 0};
  const auto layout = control::encode_nodes(attempt_->layout());
  for (const AttemptNode& node : nodes) {
    plan.node_rank = node.rank;
    plan.serve_store = node.rank == 0;
    plan.input = options_.input && node.rank == 0;
    const bool leaves_at_once = node.link == own_link_ || options_.resize.how == ResizeManner::How::stop;
    plan.leave_grace_ms = plan.elastic && !leaves_at_once ? options_.resize.grace.count() : 0;
    links_.send(node.link, control::encode_once(plan, layout));
  }
  const int link = nodes.front().link;
  const bool anew = std::exchange(input_link_, link) != link;
  if (options_.input) events_.input_wanted(anew);
}

void Coordinator::start_ranks() {
  attempt_->set_phase(AttemptPhase::running);
  phase_end_.reset();
  const bool last = membership_.restarts_used() >= options_.membership.max_restarts;
  SupervisionLimits limits{.failure_grace = options_.failure_grace.value_or(last ? kLastAttemptGrace : kNoGrace),
                           .shutdown_timeout = options_.shutdown_timeout,
                           .resize_grace = options_.resize.grace};
  if (options_.stack_limit > std::chrono::milliseconds(0)) limits.examination = options_.stack_limit + kStackReserve;
  limits.kill_patience = last ? limits.final_kill_patience : kRestartKillPatience;
  send_to_nodes(attempt_->start(limits, {.ending = options_.ending_signals, .forwarded = options_.forwarded_signals}));
}

void Coordinator::follow(const SignalOrders& orders, bool by_slurm) {
  for (const SignalOrder& order : orders) {
    if (order.target == SignalOrder::Target::stacks) {
      ask_for_stacks();
      continue;
    }
    if (order.target == SignalOrder::Target::some) {
      kill_some(order.ranks);
      continue;
    }
    const bool groups = order.target == SignalOrder::Target::groups;
    events_.detail(
        fmt::format("sending {} to the ranks{}", base::signal_name(order.signal), groups ? "' process groups" : ""));
    const bool received = order.signal != SIGCONT && order.signal != SIGKILL;  // these follow from it
    send_to_nodes(control::SignalRanks{.epoch = attempt_->epoch(),
                                       .groups = groups,
                                       .signal = order.signal,
                                       .may_have_reached_ranks = by_slurm && received});
    if (groups) limit_end(options_.shutdown_timeout);
    if (groups) announce_end(order.signal);
    if (order.signal != SIGKILL) continue;
    limit_end(std::chrono::milliseconds(0));
    state_.asked_at = Heartbeat::Clock::now();
    give_up_silent_nodes({});
  }
}

void Coordinator::signal_received(int signal, bool by_slurm) {
  const bool ends = std::find(options_.ending_signals.begin(), options_.ending_signals.end(), signal) !=
                    options_.ending_signals.end();
  events_.detail(fmt::format("received {}", base::signal_name(signal)));
  if (in(AttemptPhase::running)) {
    follow(attempt_->supervisor().signal_received(signal, clock_(), by_slurm), by_slurm);
  } else if (ends && gathers_or_waits()) {
    outcome_.end_by(signal);
    finish();
  } else if (ends && in(AttemptPhase::preparing)) {
    outcome_.forwarded_signal = signal;
    end_attempt();
  } else if (ends) {
    // One cause may give several SIGTERMs: Slurm signals this process and its agents.
    const bool again = drain_time() < control::kDrainTime;
    if (in(AttemptPhase::cleaning) && !outcome_.success()) outcome_.end_by(signal);  // no restart is wanted
    shorten_drain(again && signal == SIGINT ? std::chrono::seconds(0) : control::kUrgentDrainTime);
  }
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
  if (asks_plan()) consider(next_decision_);
  if (phase_ == Phase::gathering) consider(wait_told_at_);
  if (in(AttemptPhase::running)) {
    consider(attempt_->supervisor().next_deadline());
    consider(attempt_->modex().absences().next_deadline());
    consider(state_.notice.next_deadline());
    consider(state_.held_until);
    if (!state_.hang_ended) consider(state_.hang.next_look());
  }
  if (in(AttemptPhase::cleaning)) consider(state_.give_up_at);
  if (phase_ <= Phase::waiting && (!in(AttemptPhase::cleaning) || drain_time() == control::kDrainTime))
    consider(job_end_);
  consider(links_.next_deadline());
  return next;
}

void Coordinator::time_passed() {
  links_.time_passed();
  if (expired(job_end_)) job_timed_out();
  if (asks_plan()) decide();
  if (in(AttemptPhase::running)) tell_of_change();
  tell_waiting();
  give_up_preparing();
  if (in(AttemptPhase::running)) {
    lose_accused();
    take_held_ends();
    Supervisor& supervisor = attempt_->supervisor();
    if (supervisor.killing() && expired(supervisor.next_deadline())) give_up_silent_nodes(state_.asked_at);
    follow(supervisor.time_passed(clock_()));
    send_modex(attempt_->modex().absences().time_passed(clock_().steady));
    look_for_hang();
    settle_stacks();
    if (const auto text = state_.notice.take(clock_().steady, supervisor.left())) events_.note(*text);
    if (supervisor.done()) {
      outcome_ = supervisor.outcome();
      outcome_.stacks = std::move(state_.stacks);
      apply_group_verdict(outcome_);
      if (!outcome_.success()) outcome_.hang = std::move(state_.hang_report);
      end_attempt();
    }
  }
  if (in(AttemptPhase::cleaning) && expired(state_.give_up_at)) give_up_cleaning();
  if (in(AttemptPhase::cleaning) && expired(phase_end_)) give_up_silent_nodes(state_.asked_at);
  if (in(AttemptPhase::cleaning) && (expired(phase_end_) || attempt_->settled())) conclude();
  if (phase_ == Phase::finishing && (links_.empty() || expired(phase_end_))) phase_ = Phase::finished;
}

std::string Coordinator::waiting_hint() const { return events_.waiting_hint ? events_.waiting_hint() : std::string{}; }

void Coordinator::tell_waiting() {
  if (phase_ != Phase::gathering || !expired(wait_told_at_)) return;
  wait_told_at_.reset();
  const std::string where = listening_at_.empty() ? "" : fmt::format(" at {}", fmt::join(listening_at_, ", "));
  const std::string hint = waiting_hint();
  events_.note(fmt::format("waiting for other nodes{}, for {} s at most; {}{}{}", where,
                           std::chrono::ceil<std::chrono::seconds>(membership_.rules().join_timeout).count(),
                           membership_.describe(), hint.empty() ? "" : "; ", hint));
}

void Coordinator::give_up_preparing() {
  if (!in(AttemptPhase::preparing) || !expired(phase_end_)) return;
  for (AttemptNode& node : attempt_->nodes()) {
    if (node.state != NodeState::preparing) continue;
    // The next attempt would wait for it as long.
    if (membership_.rules().elastic()) node.link == own_link_ ? restart_is_pointless_ = true : node.unfit = true;
    return fail_node(node,
                     fmt::format("ddprun's agent on {} (pid {}) did not prepare its ranks within {} s",
                                 node.layout.host, node.pid, kPreparingLimit.count()),
                     1);
  }
}

}  // namespace ddp::launcher
