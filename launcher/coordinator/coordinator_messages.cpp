// What the coordinator does with the messages of agents.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/process.hpp"
#include "coordinator/coordinator.hpp"
#include "outcome/group_verdict.hpp"

namespace ddp::launcher {
namespace {

// slurmstepd signals the processes of a step one after the other.
constexpr std::chrono::seconds kLeaverPatience{2};

/// Nothing for messages that belong to no attempt.
std::optional<int> epoch_of(const control::Message& message) {
  return std::visit(
      [](const auto& kind) -> std::optional<int> {
        if constexpr (requires { kind.epoch; }) return kind.epoch;
        return std::nullopt;
      },
      message);
}

}  // namespace

void Coordinator::handle(int link, const control::Message& message) {
  if (const auto* hello = std::get_if<control::Hello>(&message)) return handle_hello(link, *hello);
  if (const auto* hello = std::get_if<control::AllocationHello>(&message)) return handle_allocation(link, *hello);
  if (const auto* wanted = std::get_if<control::ResizeAsked>(&message)) return handle_resize(link, *wanted);
  if (const auto* signal = std::get_if<control::SignalReceived>(&message)) return handle_signal(link, *signal);
  if (const auto* resting = std::get_if<control::Resting>(&message)) return handle_resting(link, *resting);
  if (const auto* ready = std::get_if<control::WarmWorkersReady>(&message)) {
    if (membership_.warmed(link, clock_().steady))
      events_.detail(
          fmt::format("{} has {} ready", links_.peer(link), ready->all ? "its interpreters" : "not all interpreters"));
    return;
  }
  if (const auto* taken = std::get_if<control::InputTaken>(&message)) {
    if (options_.input && link == input_link_) events_.input_taken(taken->bytes);
    return;
  }
  AttemptNode* node = attempt_ ? attempt_->node_of(link) : nullptr;
  if (node == nullptr || epoch_of(message) != attempt_->epoch()) return;
  if (const auto* cleaned = std::get_if<control::AttemptCleaned>(&message)) {
    if (!in(AttemptPhase::cleaning)) return;
    node->state = NodeState::cleaned;
    for (const std::string& line : cleaned->store_refusals) {
      if (state_.store_refusals.size() < kMostStoreRefusals) state_.store_refusals.push_back(line);
    }
    return;
  }
  // A node that has failed may still deliver what its ranks wrote.
  if (const auto* output = std::get_if<control::ConsoleOutput>(&message)) {
    if (options_.job_console) events_.output(link, *output);
    return;
  }
  if (!node->may_have_ranks()) return;
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        if constexpr (std::is_same_v<Kind, control::AttemptPrepared>) {
          handle_prepared(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::RanksStarted>) {
          handle_started(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::AttemptFailed>) {
          handle_failed(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::StacksCollected>) {
          handle_stacks(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::RanksStill>) {
          handle_still(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::RanksObserved>) {
          handle_observed(*node, kind);
        } else if constexpr (std::is_same_v<Kind, control::Progress>) {
          if (events_.progress) events_.progress(node->rank, attempt_->nodes().size(), kind);
        } else if constexpr (requires { kind.local_rank; } && !std::is_same_v<Kind, control::RankEndNoted>) {
          const bool known = kind.local_rank >= 0 && kind.local_rank < node->layout.nproc;
          if (in(AttemptPhase::running) && known) handle_rank(node->first_rank + kind.local_rank, kind);
        } else {
          handle_modex(*node, kind);
        }
      },
      message);
}

void Coordinator::handle_signal(int link, const control::SignalReceived& message) {
  // Slurm signals every agent of a step for one cause; only what one agent receives again is a further signal.
  if (leaves(link, message)) return;
  const int count = ++signal_counts_[{link, message.signal}];
  int& taken = signals_taken_[message.signal];
  if (count <= taken) return;
  taken = count;
  signal_received(message.signal, message.by_slurm);
}

/// A signal to the agent of another process, which is not Slurm's to the step, is about its node alone; one to an agent
/// of another allocation in any case.
bool Coordinator::leaves(int link, const control::SignalReceived& message) {
  if (phase_ >= Phase::finishing) return false;
  if (const auto allocation = allocations_.find(link); allocation != allocations_.end()) {
    for (const int agent : membership_.agents_of(allocation->second)) let_leave(agent, message);
    return true;
  }
  const bool guest = membership_.is_guest(link);
  const bool ends = guest || message.signal == SIGTERM || message.signal == SIGINT;
  if (!ends || link == own_link_ || (message.by_slurm && !guest)) return false;
  if (!membership_.may_leave(link)) return guest;
  let_leave(link, message);
  return true;
}

void Coordinator::let_leave(int link, const control::SignalReceived& message) {
  if (!membership_.may_leave(link)) return;
  events_.detail(fmt::format("{} received {}: its node leaves", links_.peer(link), base::signal_name(message.signal)));
  membership_.leave(link);
  if (!message.by_slurm) return;
  state_.slurm_ends_leavers = true;
  if (in(AttemptPhase::running)) decide();  // before ranks end that Slurm has signalled, too
}

/// Tells a user who wants to bring further nodes what hinders, before their agents start.
void Coordinator::handle_allocation(int link, const control::AllocationHello& hello) {
  if (membership_.has_joined(link)) return;
  links_.set_peer(link, fmt::format("Slurm job {}'s ddprun on {} (pid {})", hello.allocation, hello.host, hello.pid));
  if (phase_ >= Phase::finishing) return refuse(link, fmt::format("run '{}' is over", options_.membership.run_id));
  if (!membership_.rules().open()) return refuse(link, "the job's nodes are fixed (--nnodes MIN:MAX lets others join)");
  if (const std::string why = membership_.why_full(); !why.empty()) return refuse(link, why);
  events_.detail(fmt::format("{} starts agents on nodes that are to join", links_.peer(link)));
  allocations_[link] = hello.allocation;
  links_.send(link, control::JoinTaken{});
}

void Coordinator::handle_resize(int link, const control::ResizeAsked& wanted) {
  if (membership_.has_joined(link)) return;
  links_.set_peer(link, fmt::format("ddp-info resize on {}", wanted.host));
  ResizeAnswer answer{.text = fmt::format("run '{}' is over", options_.membership.run_id)};
  if (phase_ < Phase::finishing)
    answer = wanted.drain.empty() ? membership_.resize({.nodes = wanted.nodes,
                                                        .spares = wanted.spares,
                                                        .by = links_.peer(link),
                                                        .stays = own_link_.value_or(-1)},
                                                       clock_().steady)
                                  : drain(wanted.drain, links_.peer(link));
  std::string what = fmt::format("the leave of {}", wanted.drain);
  if (wanted.drain.empty())
    what = fmt::format("{} nodes{}", wanted.nodes > 0 ? std::to_string(wanted.nodes) : "as many",
                       wanted.spares >= 0 ? fmt::format(" and {} spares", wanted.spares) : "");
  events_.detail(fmt::format("{} asked for {}: {}", links_.peer(link), what, answer.text));
  release(link, answer.taken ? 0 : 1, answer.text);
}

/// Its nodes, of which there are several where several ddpruns run on it, leave as after SIGTERM to their agents: all
/// or none.
ResizeAnswer Coordinator::drain(const std::string& host, const std::string& by) {
  const std::vector<int> agents = membership_.agents_on(host);
  if (agents.empty()) return {.text = fmt::format("{} is not among the job's nodes", host)};
  if (phase_ == Phase::gathering) return {.text = "the job has not started"};
  if (std::find(agents.begin(), agents.end(), own_link_.value_or(-1)) != agents.end())
    return {.text = fmt::format("the ddprun that leads the job is on {}", host)};
  if (!membership_.may_leave(agents))
    return {.text = fmt::format("too few nodes would be left for --nnodes={}", membership_.rules().range())};
  for (const int agent : agents) membership_.leave(agent, by);
  return {.taken = true, .text = fmt::format("{} is to leave", host)};
}

void Coordinator::handle_hello(int link, const control::Hello& hello) {
  if (membership_.has_joined(link)) return;
  links_.set_peer(link, fmt::format("the agent on {} (pid {})", hello.host, hello.pid));
  if (phase_ >= Phase::finishing) return refuse(link, fmt::format("run '{}' is over", options_.membership.run_id));
  const std::string why = membership_.join(link, hello, clock_().steady);
  if (!why.empty()) {
    // One of another version may be none of this job's, where its user starts the agents one by one.
    const bool stray = hello.run_id != options_.membership.run_id ||
                       (membership_.rules().replaceable && hello.version != membership_.rules().version);
    const bool needed = phase_ == Phase::gathering && !stray &&
                        membership_.num_members() < membership_.rules().max_nodes - membership_.rules().absent;
    refuse(link, why);
    // Without it the job cannot become complete: to wait on would only hide the cause.
    if (needed) agents_lost(why, 1);
    return;
  }
  events_.detail(
      fmt::format("{} has joined with {} rank{}", links_.peer(link), hello.nproc, hello.nproc == 1 ? "" : "s"));
  if (events_.agent_joined) events_.agent_joined(hello.order);
  const MembershipRules& rules = membership_.rules();
  const auto rest = membership_.rest_of(link, clock_().steady);
  if (phase_ == Phase::attempting || rest.count() > 0)
    return links_.send(link, control::JoinTaken{.spare = membership_.is_spare(link), .rest_ms = rest.count()});
  events_.joined(membership_.num_members(), rules.max_nodes + rules.spares - rules.absent);
}

void Coordinator::handle_prepared(AttemptNode& node, const control::AttemptPrepared& message) {
  if (!in(AttemptPhase::preparing)) return;
  attempt_->prepared(node, message);
  if (attempt_->all_prepared()) start_ranks();
}

void Coordinator::handle_started(AttemptNode& node, const control::RanksStarted& message) {
  if (!in(AttemptPhase::running) || node.state == NodeState::started) return;
  attempt_->started(node, message.pids);
  node.description = message.description;
  for (const std::string& text : attempt_->take_descriptions()) events_.described(text);
  events_.started(attempt_->ranks_started(), attempt_->world_size(), static_cast<int>(attempt_->nodes().size()));
}

void Coordinator::handle_failed(AttemptNode& node, const control::AttemptFailed& message) {
  if (!message.may_recover) node.newcomer ? void(node.unfit = true) : void(restart_is_pointless_ = true);
  const bool noted = in(AttemptPhase::cleaning) && outcome_.success();  // by fail_node()
  fail_node(node, message.message, message.exit_status);
  if (!noted && !is_reported(node)) events_.note(message.message);
}

void Coordinator::handle_rank(int rank, const control::RankEnded& message) {
  if (state_.held_ends.empty()) {
    if (!slurm_may_end(rank, message.end)) return rank_ended(rank, message);
    state_.held_until = after(kLeaverPatience);
  }
  state_.held_ends.emplace_back(rank, message);
}

/// Slurm, when it ends another allocation, may signal ranks before their agent, whose word makes that a leave. Until
/// then, what ends after them may have lost them.
bool Coordinator::slurm_may_end(int rank, const RankEnd& end) const {
  const int link = attempt_->node_with(rank).link;
  if (!attempt_->supervisor().running() || !membership_.is_guest(link) || !membership_.may_leave(link)) return false;
  return std::any_of(options_.ending_signals.begin(), options_.ending_signals.end(),
                     [&](int signal) { return end.exit_status() == 128 + signal; });
}

void Coordinator::take_held_ends() {
  if (attempt_->supervisor().running() && !expired(state_.held_until)) return;
  state_.held_until.reset();
  for (const auto& [rank, message] : std::exchange(state_.held_ends, {})) rank_ended(rank, message);
}

void Coordinator::rank_ended(int rank, const control::RankEnded& message) {
  const RankEnd& end = message.end;
  events_.detail(fmt::format("rank {} ended: {}", rank,
                             end.by_signal ? base::signal_name(end.code) : fmt::format("exit code {}", end.code)));
  Supervisor& supervisor = attempt_->supervisor();
  if (supervisor.resizing() && !supervisor.fits_resize(end))
    events_.note(fmt::format("rank {} ended with {} while it was to end for a change of nodes", rank,
                             end.by_signal ? base::signal_name(end.code) : fmt::format("exit code {}", end.code)));
  if (end.success() && !end.restarts && !supervisor.outcome().resized) membership_.rank_succeeded();
  if (events_.rank_ended) events_.rank_ended(rank, attempt_->node_with(rank).layout.host, end);
  if (!end.success() && attempt_->supervisor().outcome().failures.empty()) {
    for (AttemptNode& node : attempt_->nodes()) {
      node.silent_before = node.may_have_ranks() && links_.is_silent(node.link);
    }
  }
  if (!end.success()) note_accusation(attempt_->node_with(rank), message.traces);
  follow(attempt_->supervisor().rank_ended(rank, end, message.traces, clock_()));
}

/// libddp's errors name the ranks that were lost.
void Coordinator::note_accusation(const AttemptNode& accuser, const RankTraces& traces) {
  for (const std::string* text : {&traces.error_content, &traces.stderr_tail}) {
    for (const int rank : blamed_ranks(*text)) {
      if (rank < 0 || rank >= attempt_->world_size()) continue;
      const int node = attempt_->node_with(rank).rank;
      if (node != accuser.rank) state_.accused.try_emplace(node, Heartbeat::Clock::now());
    }
  }
}

/// A node that others name, and that has shown no life since, is gone: its ranks' end need not be waited for.
void Coordinator::lose_accused() {
  for (const auto& [rank, since] : state_.accused) {
    AttemptNode& node = attempt_->nodes().at(static_cast<std::size_t>(rank));
    const auto heard = links_.last_heard(node.link);
    if (!node.may_have_ranks() || !heard || *heard > since || !links_.is_silent(node.link)) continue;
    node.silent_before = true;
    return links_.lose(node.link,
                       fmt::format("nothing has come from it for {} s, and ranks of other nodes have lost its own",
                                   std::chrono::floor<std::chrono::seconds>(options_.peers.answer).count()));
  }
}

void Coordinator::handle_rank(int rank, const control::RankAborted& message) {
  events_.detail(fmt::format("rank {} called PMIx_Abort({})", rank, message.call.status));
  if (attempt_->supervisor().resizing())
    events_.note(fmt::format("rank {} called PMIx_Abort({}) while it was to end for a change of nodes", rank,
                             message.call.status));
  follow(attempt_->supervisor().rank_aborted(rank, message.call, clock_()));
}

void Coordinator::handle_rank(int rank, const control::RankStopped& message) {
  if (message.signal == 0) {
    attempt_->supervisor().rank_continued(rank);
  } else {
    attempt_->supervisor().rank_stopped(rank, message.signal, clock_());
  }
}

void Coordinator::handle_modex(const AttemptNode& node, const control::Message& message) {
  ModexRouter& router = attempt_->modex();
  ModexRouter::Outgoing outgoing;
  if (const auto* fence = std::get_if<control::Fence>(&message)) {
    outgoing = router.fence(node.rank, *fence);
  } else if (const auto* request = std::get_if<control::ModexRequest>(&message)) {
    outgoing = router.request(node.rank, *request);
  } else if (const auto* reply = std::get_if<control::ModexReply>(&message)) {
    outgoing = router.reply(*reply);
  } else if (const auto* question = std::get_if<control::FindAbsent>(&message)) {
    outgoing = router.find_absent(node.rank, *question, clock_().steady);
  } else if (const auto* found = std::get_if<control::AbsentFound>(&message)) {
    outgoing = router.absences().found(node.rank, *found, clock_().steady);
  }
  send_modex(outgoing);
}

void Coordinator::send_modex(const ModexRouter::Outgoing& outgoing) {
  for (const auto& [receiver, message] : outgoing) {
    links_.send(attempt_->nodes().at(static_cast<std::size_t>(receiver)).link, message);
  }
}

void Coordinator::fail_node(AttemptNode& node, const std::string& message, int exit_status) {
  if (node.state == NodeState::failed) return;
  node.state = NodeState::failed;
  const NodeFailure failure{.host = node.layout.host,
                            .node_rank = node.rank,
                            .num_ranks = node.layout.nproc,
                            .message = message,
                            .exit_status = exit_status,
                            .time = clock_().wall,
                            .silent_before = node.silent_before};
  if (events_.node_lost) events_.node_lost(failure);
  if (in(AttemptPhase::preparing)) {
    outcome_.nodes.push_back(failure);
    end_attempt();
  } else if (in(AttemptPhase::running)) {
    follow(attempt_->supervisor().node_failed(failure, node.first_rank, clock_()));
  } else if (in(AttemptPhase::cleaning) && outcome_.resized) {
    outcome_.nodes.push_back(failure);
  } else if (in(AttemptPhase::cleaning) && outcome_.success()) {
    // Its ranks had all ended well: only its processes are left, which the node itself must remove.
    events_.note(message);
  }
}

}  // namespace ddp::launcher
