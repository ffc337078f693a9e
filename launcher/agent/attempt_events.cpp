// An attempt while its ranks run: orders from the agent, ends of ranks, and their requests to other nodes.
#include <signal.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "agent/attempt.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "outcome/exit_error.hpp"
#include "slurm/slurmstepd.hpp"
#include "workers/orphans.hpp"

namespace ddp::launcher {
namespace {

// The least, whatever DDP_PEER_TIMEOUT is: an agent waits for processes that do not end.
constexpr std::chrono::seconds kAgentSilence{15};
// libpmix answers in microseconds, on a busy node in milliseconds. At the failure of a rank, and without one.
constexpr std::chrono::seconds kPmixSilence{2};
constexpr std::chrono::seconds kLongPmixSilence{5};

}  // namespace

// ---- messages ----------------

void Attempt::send(const control::Message& message) { agent_.send(message); }

void Attempt::agent_lost() {
  unclean_ = over_ = true;
  shorten_drain(control::kUrgentDrainTime);
}

void Attempt::handle(const control::Message& message) {
  if (!agent_.open()) return;  // the last orders of a lost agent
  if (const auto* end = std::get_if<control::EndAttempt>(&message)) {
    over_ = true;
    shorten_drain(std::chrono::milliseconds{end->drain_ms});
  } else if (over_) {
    return;
  } else if (const auto* begin = std::get_if<control::StartAttempt>(&message)) {
    if (failed_) return;
    try {
      start(*begin);
    } catch (const ExitError& error) {
      fail(error.what(), error.exit_status());
    } catch (const std::exception& error) {
      fail(error.what(), 1);
    }
  } else if (const auto* order = std::get_if<control::SignalRanks>(&message)) {
    step_signals_.add(*order);
    signal_ranks();
  } else if (const auto* hung = std::get_if<control::KillRanks>(&message)) {
    if (workers_) workers_->kill_groups(hung->local_ranks);
  } else if (const auto* change = std::get_if<control::NodesChange>(&message)) {
    if (change_) announce_change(change->pending);
  } else if (const auto* look = std::get_if<control::ObserveRanks>(&message)) {
    observe_ranks(Deadline::after(std::chrono::milliseconds{look->limit_ms}));
  } else if (const auto* wish = std::get_if<control::CollectStacks>(&message)) {
    collect_stacks(*wish);
  } else if (const auto* fence = std::get_if<control::Fence>(&message)) {
    const auto open = open_fences_.find(fence->ranks);
    if (open == open_fences_.end()) return;
    pmix_->modex().answer(open->second.front(), fence->status, fence->data);
    open->second.pop_front();
    if (open->second.empty()) open_fences_.erase(open);
  } else if (const auto* request = std::get_if<control::ModexRequest>(&message)) {
    if (!name_space_) return;
    const std::uint64_t ticket = next_ticket_++;
    questions_.emplace(ticket, Question{.node = request->from_node, .id = request->id});
    pmix_->modex().fetch_local(name_space_->name(), request->rank, ticket);
  } else if (const auto* reply = std::get_if<control::ModexReply>(&message)) {
    if (pmix_) pmix_->modex().answer(static_cast<std::uint64_t>(reply->id), reply->status, reply->data);
  } else if (const auto* question = std::get_if<control::FindAbsent>(&message)) {
    if (name_space_)
      pmix_->modex().find_without(name_space_->name(), ranks_.first_rank, ranks_.num_ranks, question->name);
  } else if (const auto* found = std::get_if<control::AbsentFound>(&message)) {
    arrivals_.found(*found);
  }
}

/// Ranks that do not learn of it end by what else the coordinator orders.
void Attempt::announce_change(bool pending) {
  try {
    change_->announce(pending);
  } catch (const std::exception& error) {
    base::write_stderr_line(
        fmt::format("ddprun: {}: ranks do not learn that nodes change: {}", job_.host, error.what()));
  }
}

void Attempt::shorten_drain(std::chrono::milliseconds limit) { drain_time_ = std::min(drain_time_, limit); }

void Attempt::read_drain_time() {
  try {
    agent_.read();
  } catch (const std::exception&) {  // out of memory
    shorten_drain(control::kUrgentDrainTime);
  }
}

// ---- events ----------------

void Attempt::watch_rank(int local) {
  loop_.watch(workers_->pidfd(local), [this, local] {
    const int fd = workers_->pidfd(local);
    take_signals();  // first: a stop before a failure must be reported before the failure
    const auto end = workers_->take_end(local);
    if (!end) return;
    loop_.forget(fd);
    report_end(local, *end);
  });
}

void Attempt::report_end(int local, const RankEnd& end) {
  control::RankEnded message{.epoch = plan_.epoch, .local_rank = local, .end = end};
  if (end.success()) {
    message.end.restarts = change_ && change_->wants_restart(global_rank(local));
    return send(message);
  }
  unclean_ = true;
  const RankStreams streams = streams_of(local);
  message.traces.stdout_log = streams.out.route.file;
  message.traces.stderr_log = streams.err.route.file;
  message.traces.stderr_shown = streams.err.route.console;
  message.traces.python = job_.command.python;
  message.traces.interpreter = job_.command.interpreter;
  if (end.by_signal && end.code == SIGKILL) message.traces.oom = oom_.explain();
  message.traces.pmix_server = silence_of_pmix(kPmixSilence);
  traces_->gather(std::move(message));
}

void Attempt::send_gathered() {
  if (!traces_) return;
  for (TraceGatherer::Gathered& each : traces_->take()) {
    std::string why = each.failure;
    if (each.late) {
      why = fmt::format("{} does not answer",
                        log_folder_.empty() ? "standard error" : fmt::format("the log folder '{}'", log_folder_));
    }
    if (!why.empty()) {
      base::write_stderr_line(fmt::format("ddprun: {}: the last lines or the error file of rank {} are missing: {}",
                                          job_.host, global_rank(each.end.local_rank), why));
    }
    send(each.end);
  }
}

void Attempt::signal_ranks() {
  for (const auto& [order, reached_ranks] : step_signals_.take_settled()) {
    if (order.groups) ordered_.push_back(order.signal);
    if (reached_ranks) continue;
    if (order.groups && order.signal == SIGSTOP) {
      suspend_ranks();
      continue;
    }
    if (order.groups && order.signal == SIGCONT) resume_ranks();
    if (order.groups) {
      workers_->signal_groups(order.signal);
    } else {
      workers_->signal_workers(order.signal);
    }
  }
}

void Attempt::suspend_ranks() {
  suspended_ = true;
  if (standstill_) standstill_->rest(true);
  workers_->signal_groups(SIGSTOP);
  signal_descendants(SIGSTOP);  // what left its rank's group, or was just being forked
}

void Attempt::resume_ranks() {
  if (!std::exchange(suspended_, false)) return;
  if (standstill_) standstill_->rest(false);
  workers_->take_stop_changes();  // of our own doing
  signal_descendants(SIGCONT);
}

/// One sentence, where libpmix's thread has not answered for @p least; else empty.
std::string Attempt::silence_of_pmix(std::chrono::milliseconds least) const {
  const auto since = pmix_ ? pmix_->pulse().silent_since() : std::nullopt;
  const auto silence = since ? heartbeat_.silence(*since) : std::chrono::milliseconds(0);
  if (!since || silence < least) return {};
  return fmt::format(
      "ddprun's PMIx server on {} has not answered for {} s: ranks that wait for it, and those that miss others, are "
      "not "
      "to blame",
      job_.host, std::chrono::floor<std::chrono::seconds>(silence).count());
}

void Attempt::watch_pmix() {
  if (!pmix_ || pmix_->abandoned() || suspended_) return;
  const std::string silence = silence_of_pmix(kLongPmixSilence);
  if (!silence.empty() && !std::exchange(pmix_reported_, true)) {
    base::write_stderr_line(fmt::format("ddprun: warning: {}", silence));
  } else if (silence.empty() && !pmix_->pulse().silent_since()) {
    pmix_reported_ = false;
  }
  pmix_->pulse().ask();
}

void Attempt::beat() {
  if (!suspended_) agent_.beat();
  watch_pmix();
  // Others give the node up, where there are some. On one host, somebody may have stopped ddprun to look at it.
  const auto limit = std::max<std::chrono::milliseconds>(job_.peers.silence(), kAgentSilence);
  if (plan_.nodes.size() < 2 || job_.options.dry_run || suspended_ || !agent_.open() ||
      heartbeat_.silence(agent_.last_heard()) < limit)
    return;
  base::write_stderr_line(
      fmt::format("ddprun: {}: the agent of this node does not answer; ending its ranks", job_.host));
  agent_.close(Deadline::after(std::chrono::seconds(0)));
  agent_lost();
}

void Attempt::take_signals() {
  for (const auto& [signal, sender] : signals_.take()) {
    if (signal == SIGCHLD) {
      reap_orphans(workers_->pids());
    } else if (is_slurmstepd(sender)) {
      step_signals_.arrived(signal);
    }
  }
  signal_ranks();
  for (const StopChange& change : workers_->take_stop_changes()) {
    const int rank = global_rank(change.local_rank);
    if (suspended_) continue;  // Ctrl-Z, of which the user knows
    if (change.signal == 0) {
      tell(fmt::format("rank {} resumed", rank));
    } else {
      const pid_t pid = workers_->pid(change.local_rank);
      base::write_stderr_line(
          fmt::format("ddprun: rank {} (pid {}{}) was stopped by {}; the job waits for it (kill -CONT {})", rank, pid,
                      plan_.nodes.size() > 1 ? " on " + job_.host : "", base::signal_name(change.signal), pid));
    }
    send(control::RankStopped{.epoch = plan_.epoch, .local_rank = change.local_rank, .signal = change.signal});
  }
}

void Attempt::take_aborts() {
  for (AbortMessage& call : pmix_->aborts().take()) {
    send(control::RankAborted{.epoch = plan_.epoch,
                              .local_rank = call.rank - ranks_.first_rank,
                              .call = {.status = call.status, .message = std::move(call.message)}});
  }
}

void Attempt::take_modex() {
  ModexEvents events = pmix_->modex().take();
  for (FenceCall& call : events.fences) {
    open_fences_[call.ranks].push_back(call.id);
    send(control::Fence{
        .epoch = plan_.epoch, .ranks = std::move(call.ranks), .data = std::move(call.data), .status = 0});
  }
  for (const ModexCall& call : events.calls) {
    if (!call.arrival.empty()) {
      arrivals_.add(call, Deadline::Clock::now());
      continue;
    }
    send(control::ModexRequest{
        .epoch = plan_.epoch, .id = static_cast<std::int64_t>(call.id), .from_node = -1, .rank = call.rank});
  }
  for (ModexAnswer& answer : events.answers) {
    const auto question = questions_.find(answer.id);
    if (question == questions_.end()) continue;
    const Question asked = question->second;
    questions_.erase(question);
    send(control::ModexReply{.epoch = plan_.epoch,
                             .id = asked.id,
                             .to_node = asked.node,
                             .status = answer.status,
                             .data = std::move(answer.data)});
  }
  for (RanksWithout& found : events.without) {
    send(control::AbsentFound{.epoch = plan_.epoch, .name = std::move(found.name), .ranks = ranges_of(found.ranks)});
  }
}

}  // namespace ddp::launcher
