// How an attempt and the job end, within limits that no node can exceed.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "coordinator/coordinator.hpp"
#include "report/failure_report.hpp"

namespace ddp::launcher {
namespace {

// Agents end orphans within about 5 s (see agent/attempt.cpp), besides the drain time.
constexpr std::chrono::seconds kCleaningLimit{20};
constexpr std::chrono::seconds kFinishingLimit{5};
// From the time that ranks have to end to the end of the job, whatever a node does: 2.5 s for SIGKILL to take effect
// (SupervisionLimits), then cleaning up. The rest is for agents to leave, and for srun (see launch.cpp). 0.2 s of the 5
// s that users are promised are left for a busy machine.
constexpr std::chrono::milliseconds kEndMargin{4'800};
constexpr std::chrono::milliseconds kLeaveReserve{1'200};
constexpr std::chrono::milliseconds kSrunReserve{1'000};
constexpr std::chrono::milliseconds kLeastFinishing{300};
constexpr std::chrono::milliseconds kDrainReserve{500};
constexpr std::chrono::milliseconds kLookAgain{500};
// Of Slurm's KillWait (30 s by default) for ranks to end by themselves; SIGTERM, SIGKILL and the cleaning follow.
constexpr std::chrono::seconds kSlurmLeaveGrace{15};

}  // namespace

/// The end is @p limit and the margin from now, or earlier if that was so.
void Coordinator::limit_end(std::chrono::milliseconds limit) {
  const Deadline end = after(limit + kEndMargin);
  state_.end_by = state_.end_by ? earlier(*state_.end_by, end) : end;
}

std::optional<GenerationEnd> Coordinator::end_of_generation() const {
  if (!outcome_.failed_by_itself() || restart_is_pointless_) return std::nullopt;
  switch (outcome_.root_cause()) {
    case RootCause::node: return only_newcomers_failed() ? GenerationEnd::resized : GenerationEnd::node_failed;
    case RootCause::none: return state_.change_announced ? GenerationEnd::resized : GenerationEnd::requested;
    default: return GenerationEnd::rank_failed;
  }
}

/// The job goes on without them, as it did before.
bool Coordinator::only_newcomers_failed() const {
  return std::all_of(outcome_.nodes.begin(), outcome_.nodes.end(), [this](const NodeFailure& failure) {
    if (failure.node_rank < 0) return false;
    const AttemptNode& node = attempt_->nodes().at(static_cast<std::size_t>(failure.node_rank));
    return node.unfit && node.newcomer;
  });
}

bool Coordinator::may_go_on() const {
  const auto end = end_of_generation();
  return end && membership_.may_follow(*end, clock_().steady);
}

// ---- nodes that do not answer ----------------

bool Coordinator::is_reported(const AttemptNode& node) const {
  const auto is_this = [&](const NodeFailure& failure) { return failure.node_rank == node.rank; };
  const std::vector<NodeFailure>& failures =
      in(AttemptPhase::running) ? attempt_->supervisor().outcome().nodes : outcome_.nodes;
  return std::any_of(failures.begin(), failures.end(), is_this);
}

void Coordinator::name_silent(const AttemptNode& node) {
  if (!is_reported(node)) state_.silent.push_back(node.layout.host);
}

/// Those of whom nothing has come since @p since, or for longer than a healthy agent would take.
void Coordinator::give_up_silent_nodes(Heartbeat::Time since) {
  for (AttemptNode& node : attempt_->nodes()) {
    if (node.settled()) continue;
    const auto heard = links_.last_heard(node.link);
    if (heard && *heard > since && !links_.is_silent(node.link)) continue;
    links_.abandon(node.link);
    fail_node(node,
              fmt::format("ddprun's agent on {} (pid {}) does not answer; its processes may still be running",
                          node.layout.host, node.pid),
              1);
    node.state = NodeState::lost;
    name_silent(node);
  }
}

/// The job could be over, but not all nodes have cleaned up. Slow readers of the ranks' output may go on, unless the
/// user ended the job.
void Coordinator::give_up_cleaning() {
  state_.give_up_at = after(kLookAgain);
  give_up_silent_nodes(state_.asked_at);
  if (ended_by_user()) phase_end_ = Deadline{clock_().steady};
}

// ---- Ctrl-Z ----------------

void Coordinator::suspend() {
  links_.send_to_all(control::Resting{.rests = true});
  stop_ranks(true);
}

void Coordinator::resume() {
  links_.send_to_all(control::Resting{.rests = false});
  if (!links_.any_resting()) stop_ranks(false);
}

/// Of several agents that rest, all must go on before the ranks do.
void Coordinator::handle_resting(int link, const control::Resting& message) {
  if (phase_ >= Phase::finishing || (attempt_ && attempt_->node_of(link) == nullptr)) return;
  if (message.rests && !links_.any_resting())  // Slurm stops them all
    events_.note(fmt::format("{} was stopped by SIGTSTP: the ranks of all nodes wait for it", links_.peer(link)));
  links_.set_resting(link, message.rests);
  if (message.rests || !links_.any_resting()) stop_ranks(message.rests);
}

void Coordinator::stop_ranks(bool stop) {
  links_.send_to_all(control::SignalRanks{
      .epoch = attempt_ ? attempt_->epoch() : 0, .groups = true, .signal = stop ? SIGSTOP : SIGCONT});
}

// ---- the end ----------------

void Coordinator::end_attempt() {
  attempt_->set_phase(AttemptPhase::cleaning);
  if (!outcome_.success() && !may_go_on()) limit_cleaning();
  state_.asked_at = Heartbeat::Clock::now();
  send_end();
}

void Coordinator::limit_cleaning() {
  if (!state_.end_by) limit_end(options_.shutdown_timeout);
  state_.give_up_at = Deadline{state_.end_by->when() - kLeaveReserve};
}

void Coordinator::send_end() {
  std::chrono::milliseconds drain = drain_time();
  phase_end_ = after(kCleaningLimit + drain);
  if (ended_by_user()) {
    const auto left = state_.give_up_at->when() - kDrainReserve - clock_().steady;
    drain =
        std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(left), std::chrono::milliseconds(0), drain);
  }
  send_to_nodes(control::EndAttempt{.epoch = attempt_->epoch(), .drain_ms = static_cast<int>(drain.count())});
}

std::chrono::milliseconds Coordinator::drain_time() const {
  return ended_by_user() ? std::min<std::chrono::milliseconds>(state_.drain_time, control::kUrgentDrainTime)
                         : state_.drain_time;
}

Deadline Coordinator::reader_limit(Heartbeat::Time begin, Heartbeat::Time moved) const {
  const std::chrono::milliseconds drain = drain_time();
  const Deadline limit = earlier(Deadline{begin + drain},
                                 Deadline{moved + std::min<std::chrono::milliseconds>(drain, control::kStallLimit)});
  return ended_by_user() && state_.end_by ? earlier(limit, Deadline{state_.end_by->when() - kSrunReserve}) : limit;
}

void Coordinator::shorten_drain(std::chrono::milliseconds limit) {
  if (in(AttemptPhase::cleaning) && !state_.give_up_at) limit_cleaning();
  if (limit >= state_.drain_time) return;
  state_.drain_time = limit;
  if (in(AttemptPhase::cleaning)) send_end();
}

void Coordinator::conclude() {
  for (const AttemptNode& node : attempt_->nodes()) {
    if (!node.settled()) {
      events_.note(fmt::format("the agent on {} (pid {}) has not finished; its processes may still be running",
                               node.layout.host, node.pid));
      links_.send(node.link, control::Finish{.exit_status = exit_status()});
      links_.drop(node.link);
    }
    if (node.state != NodeState::cleaned) membership_.lost(node.link);
    if (node.unfit && membership_.lost(node.link)) release_unfit(node);
  }
  const auto end = end_of_generation();
  if (!end) return finish();
  membership_.ended(*end, clock_().steady);
  phase_ = Phase::waiting;
  decide();
}

/// Does what the plan says.
void Coordinator::decide() {
  Decision decision = membership_.decide(clock_().steady);
  for (;; decision = membership_.decide(clock_().steady)) {
    if (const auto* leaver = std::get_if<Release>(&decision)) {
      release(leaver->agent, 0, "");
      if (events_.node_freed && !leaver->slurm_node.empty()) events_.node_freed(leaver->allocation, leaver->slurm_node);
    } else if (std::holds_alternative<Withdraw>(decision)) {
      state_.change_pending = false;
    } else {
      break;
    }
  }
  if (const auto* change = std::get_if<Announce>(&decision)) return resize(*change);
  if (const auto* start = std::get_if<Start>(&decision)) return begin_generation(*start);
  if (const auto* end = std::get_if<End>(&decision)) return end_job(end->why);
  next_decision_ = std::get<WaitUntil>(decision).until;
  if (phase_ != Phase::waiting || std::exchange(wait_noted_, true)) return;
  phase_end_.reset();
  state_.end_by.reset();
  note_wait();
}

void Coordinator::begin_generation(const Start& start) {
  wait_noted_ = false;
  const int generation = start.roster.generation;
  if (generation > 0) {
    nodes_lost_ += static_cast<int>(outcome_.nodes.size());
    if (start.change.spends_restart) {
      events_.restarting(outcome_, generation - 1, membership_.restarts_used());
      if (!start.change.joined.empty()) events_.note(fmt::format("{} joined", fmt::join(start.change.joined, ", ")));
      if (!start.change.parked.empty())
        events_.note(fmt::format("{}, asked by {}", parked_text(start.change), start.change.asked_by));
    } else if (events_.going_on) {
      events_.going_on(outcome_, generation, start.change);
    }
  }
  begin_attempt(start.roster);
  for (const int link : generation > 0 ? start.parked : membership_.waiting())
    links_.send(link, control::JoinTaken{.spare = true});
}

void Coordinator::resize(const Announce& change) {
  const char* what =
      options_.resize.how == ResizeManner::How::finish ? "waiting for the ranks' end" : "ending the ranks";
  for (const std::string& host : change.joining) events_.detail(fmt::format("{} is to join: {}", host, what));
  for (const std::string& host : change.parking)
    events_.detail(fmt::format("{} is to wait as a spare: {}", host, what));
  for (const std::string& host : change.leaving) events_.detail(fmt::format("{} is to leave: {}", host, what));
  next_decision_.reset();
  state_.change_pending = state_.change_announced = true;
  tell_of_change();
  const bool by_themselves = options_.resize.how == ResizeManner::How::finish;
  // A node that leaves, perhaps because it must, cannot wait as long as one that joins.
  if (by_themselves && change.leaving.empty()) return;
  ResizeManner manner = options_.resize;
  if (state_.slurm_ends_leavers) manner.grace = std::min<std::chrono::milliseconds>(manner.grace, kSlurmLeaveGrace);
  follow(attempt_->supervisor().resize(manner, clock_()));
}

/// Ranks may ask for it, and metrics show it.
void Coordinator::tell_of_change() {
  const control::NodesChange now{.epoch = attempt_->epoch(),
                                 .pending = state_.change_pending || attempt_->supervisor().outcome().resized,
                                 .waiting = static_cast<int>(membership_.waiting().size())};
  if (state_.told.pending == now.pending && state_.told.waiting == now.waiting) return;
  state_.told = now;
  send_to_nodes(now);
}

void Coordinator::release_unfit(const AttemptNode& node) {
  const auto failure = std::find_if(outcome_.nodes.begin(), outcome_.nodes.end(),
                                    [&](const NodeFailure& each) { return each.node_rank == node.rank; });
  const bool known = failure != outcome_.nodes.end();
  release(node.link, known ? failure->exit_status : 1, known ? failure->message : "");
}

void Coordinator::release(int link, int exit_status, const std::string& message) {
  links_.send(link, control::Finish{.exit_status = exit_status, .message = message});
  links_.drop(link);
}

void Coordinator::note_wait() {
  using std::chrono::ceil, std::chrono::seconds;
  const MembershipRules& rules = membership_.rules();
  const int left = membership_.num_members();
  const std::string where = listening_at_.empty() ? "" : fmt::format(" at {}", fmt::join(listening_at_, ", "));
  const std::string cause = !outcome_.nodes.empty() ? outcome_.nodes.front().message
                            : outcome_.resized      ? "nodes have left"
                                                    : "nodes were lost";
  events_.note(
      fmt::format("{}; {} node{} left, and --nnodes={} needs {}: waiting for another ddprun{}, for {} s at most",
                  cause.substr(0, cause.find('\n')), left, left == 1 ? " is" : "s are", rules.range(), rules.min_nodes,
                  where, ceil<seconds>(rules.join_timeout).count()));
}

void Coordinator::end_job(End::Why why) {
  using Why = End::Why;
  const MembershipRules& rules = membership_.rules();
  const auto timeout = std::chrono::duration_cast<std::chrono::seconds>(rules.join_timeout).count();
  if (why == Why::not_enough_came)
    return agents_lost(fmt::format("not all nodes joined within {} s", timeout), 1, waiting_hint());
  if (why == Why::no_other_came && !outcome_.nodes.empty())
    events_.note(fmt::format("no other node joined within {} s", timeout));
  const bool by_ranks = why == Why::crash_loop && outcome_.root_cause() == RootCause::none;
  const std::string loop =
      fmt::format("{} generations in a row {} within {} s of their start: the job ends (--crash-loop)",
                  rules.crash_loop.generations,
                  by_ranks ? "were ended by their ranks (restart_here), or lost a node," : "lost a node",
                  std::chrono::ceil<std::chrono::seconds>(rules.crash_loop.within).count());
  if (outcome_.root_cause() == RootCause::none)  // nodes have left, or ranks have asked
    outcome_.nodes.push_back(
        {.host = "all nodes",
         .node_rank = -1,
         .num_ranks = 0,
         .message = by_ranks ? loop : fmt::format("nodes have left, and no other joined within {} s", timeout),
         .exit_status = 1,
         .time = clock_().wall});
  if (why == Why::crash_loop && !by_ranks) events_.note(loop);
  if (why == Why::too_few_left || why == Why::no_other_came) {  // the limits were not those of the end
    state_.end_by.reset();
    limit_end(std::chrono::milliseconds(0));
  }
  finish();
}

int Coordinator::exit_status() const {
  const int status = outcome_.exit_status();
  return options_.torchrun_exit_codes && status != 0 ? 1 : status;
}

void Coordinator::finish() {
  phase_ = Phase::finishing;
  phase_end_ = after(kFinishingLimit);
  outcome_.silent = state_.silent;
  outcome_.store_refusals = state_.store_refusals;
  if (!state_.silent.empty() && !state_.end_by) limit_end(std::chrono::milliseconds(0));
  if (state_.end_by) {
    const Deadline least = after(kLeastFinishing);
    const Deadline end{state_.end_by->when() - kSrunReserve};
    phase_end_ = earlier(*phase_end_, end < least ? least : end);
  }
  links_.stop_listening();
  release_spares();
  links_.send_to_all(control::Finish{.exit_status = exit_status()});
}

/// They have nothing to do with how the job has ended; before its start there are none.
void Coordinator::release_spares() {
  if (!attempt_) return;
  for (const int link : membership_.waiting()) release(link, 0, "");
}

void Coordinator::job_timed_out() {
  if (gathers_or_waits() || in(AttemptPhase::preparing)) {
    outcome_.timed_out = true;
    job_end_.reset();
    gathers_or_waits() ? finish() : end_attempt();
  } else if (in(AttemptPhase::running)) {
    job_end_.reset();
    follow(attempt_->supervisor().job_timed_out(clock_()));
  } else if (in(AttemptPhase::cleaning)) {
    shorten_drain(control::kUrgentDrainTime);  // a restart would time out at once
  }
}

}  // namespace ddp::launcher
