// What the coordinator does when agents tell it something.
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "coordinator/coordinator.hpp"
#include "outcome/signal_name.hpp"

namespace ddp::launcher {
namespace {

RankTraces traces_of(const control::RankEnded& message) {
  return {.error_file = message.error_file,
          .error_content = message.error_content,
          .stderr_tail = message.stderr_tail,
          .oom = message.oom};
}

}  // namespace

// ---- messages ----------------

void Coordinator::handle(int link, const control::Message& message) {
  if (const auto* hello = std::get_if<control::Hello>(&message)) return handle_hello(link, *hello);
  if (const auto* signal = std::get_if<control::SignalReceived>(&message)) {
    // What Slurm sends to a step comes from every agent; only what one agent gets again is a further signal.
    const int count = ++relayed_signals_[{link, signal->signal}];
    if (count > relayed_most_[signal->signal]) {
      relayed_most_[signal->signal] = count;
      signal_received(signal->signal, signal->by_slurm);
    }
    return;
  }
  Node* node = node_of(link);
  if (node == nullptr) return;
  if (const auto* cleaned = std::get_if<control::AttemptCleaned>(&message)) {
    if (cleaned->attempt == attempt_) node->cleaned = true;
    return;
  }
  const auto current = [&](const auto& fact) { return fact.attempt == attempt_ && !node->failed; };
  const auto rank_of = [&](const auto& fact) {
    const bool known = current(fact) && supervisor_ && fact.local_rank >= 0 && fact.local_rank < node->layout.nproc;
    return known ? std::optional{node->first_rank + fact.local_rank} : std::nullopt;
  };
  const Moment now = Moment::now();

  if (const auto* prepared = std::get_if<control::AttemptPrepared>(&message)) {
    if (current(*prepared)) handle_prepared(*node, *prepared);
  } else if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    if (current(*started)) handle_started(*node, *started);
  } else if (const auto* failed = std::get_if<control::AttemptFailed>(&message)) {
    if (!current(*failed)) return;
    node->hopeless = !failed->may_recover;
    fail_node(*node, failed->message, failed->exit_status);
  } else if (const auto* ended = std::get_if<control::RankEnded>(&message)) {
    if (rank_of(*ended)) handle_rank_ended(*node, *ended);
  } else if (const auto* aborted = std::get_if<control::RankAborted>(&message)) {
    const auto rank = rank_of(*aborted);
    if (!rank) return;
    events_.detail(fmt::format("rank {} called PMIx_Abort({})", *rank, aborted->status));
    follow(supervisor_->rank_aborted(*rank, {.status = aborted->status, .message = aborted->message}, now));
  } else if (const auto* stopped = std::get_if<control::RankStopped>(&message)) {
    const auto rank = rank_of(*stopped);
    if (!rank) return;
    if (stopped->signal == 0) {
      supervisor_->rank_continued(*rank);
    } else {
      supervisor_->rank_stopped(*rank, stopped->signal, now);
    }
  } else {
    handle_modex(*node, message);
  }
}

void Coordinator::handle_modex(const Node& node, const control::Message& message) {
  if (!modex_ || node.failed) return;
  ModexRouter::Outgoing outgoing;
  if (const auto* fence = std::get_if<control::Fence>(&message)) {
    if (fence->attempt == attempt_) outgoing = modex_->fence(node_rank(node), *fence);
  } else if (const auto* request = std::get_if<control::ModexRequest>(&message)) {
    if (request->attempt == attempt_) outgoing = modex_->request(node_rank(node), *request);
  } else if (const auto* reply = std::get_if<control::ModexReply>(&message)) {
    if (reply->attempt == attempt_) outgoing = modex_->reply(*reply);
  }
  for (const auto& [receiver, parcel] : outgoing)
    links_.send(nodes_.at(static_cast<std::size_t>(receiver)).link, parcel);
}

void Coordinator::handle_hello(int link, const control::Hello& hello) {
  links_.set_peer(link, fmt::format("the agent on {} (pid {})", hello.host, hello.pid));
  if (phase_ != Phase::gathering) {
    return refuse(
        link, fmt::format("run '{}' has already started; nodes cannot join a running job", options_.membership.run_id));
  }
  const std::string why = membership_.join(link, hello, Deadline::Clock::now());
  if (!why.empty()) {
    const bool needed =
        hello.run_id == options_.membership.run_id && membership_.num_members() < membership_.rules().max_nodes;
    refuse(link, why);
    // Without it the job cannot become complete: to wait on would only hide the cause.
    if (needed) agents_lost(why, 1);
    return;
  }
  events_.detail(
      fmt::format("{} has joined with {} rank{}", links_.peer(link), hello.nproc, hello.nproc == 1 ? "" : "s"));
  events_.joined(membership_.num_members(), membership_.rules().max_nodes);
}

void Coordinator::handle_prepared(Node& node, const control::AttemptPrepared& message) {
  node.prepared = true;
  if (message.store_port > 0 && &node == &nodes_.front()) store_port_ = message.store_port;
  if (phase_ != Phase::preparing) return;
  if (std::all_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return each.prepared; })) start_ranks();
}

void Coordinator::handle_started(Node& node, const control::RanksStarted& message) {
  if (!supervisor_) return;
  node.started = true;
  const auto count = std::min<std::size_t>(message.pids.size(), static_cast<std::size_t>(node.layout.nproc));
  for (std::size_t local = 0; local < count; ++local) {
    supervisor_->rank_started(node.first_rank + static_cast<int>(local), static_cast<pid_t>(message.pids[local]));
  }
  int started = 0;
  for (const Node& each : nodes_) started += each.started ? each.layout.nproc : 0;
  events_.started(started, world_size_, num_nodes());
}

void Coordinator::handle_rank_ended(const Node& node, const control::RankEnded& message) {
  if (!supervisor_ || message.local_rank < 0 || message.local_rank >= node.layout.nproc) return;
  const RankEnd end{
      .code = message.code,
      .by_signal = message.by_signal,
      .core_dumped = message.core_dumped,
      .time = std::chrono::system_clock::time_point{
          std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::nanoseconds(message.time_ns))}};
  events_.detail(fmt::format("rank {} ended: {}", node.first_rank + message.local_rank,
                             end.by_signal ? signal_name(end.code) : fmt::format("exit code {}", end.code)));
  follow(supervisor_->rank_ended(node.first_rank + message.local_rank, end, traces_of(message), Moment::now()));
}

void Coordinator::fail_node(Node& node, const std::string& message, int exit_status) {
  if (node.failed) return;
  node.failed = true;
  const NodeFailure failure{.host = node.layout.host,
                            .node_rank = node_rank(node),
                            .num_ranks = node.layout.nproc,
                            .message = message,
                            .exit_status = exit_status,
                            .time = std::chrono::system_clock::now()};
  if (phase_ == Phase::preparing) {
    outcome_.nodes.push_back(failure);
    end_attempt();
  } else if (phase_ == Phase::running) {
    follow(supervisor_->node_failed(failure, node.first_rank, Moment::now()));
  } else if (phase_ == Phase::cleaning && outcome_.success()) {
    // Its ranks had all ended well: nothing is lost but its processes, which the node itself must remove.
    events_.note(message);
  }
}

}  // namespace ddp::launcher
