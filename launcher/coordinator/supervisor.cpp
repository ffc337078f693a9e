// The state machine of an attempt.
#include "coordinator/supervisor.hpp"

#include <signal.h>

#include <algorithm>
#include <array>

namespace ddp::launcher {
namespace {

// Equal signals within this time have one cause.
constexpr std::chrono::seconds kSameCause{2};

// The kernel closes a dying process's connections before its parent hears of the death (do_exit: exit_files, then
// exit_notify). A rank that reacts to them may have ended first, or its node's agent may be heard first.
constexpr std::chrono::milliseconds kReactionTime{250};

// Signals that end a rank from outside or by a crash. SIGABRT is not among them: an uncaught exception, perhaps about
// the loss of another rank, ends in it.
bool is_crash(const RankEnd& end) {
  constexpr std::array kSignals{SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  return end.by_signal && std::find(kSignals.begin(), kSignals.end(), end.code) != kSignals.end();
}

bool contains(const std::vector<int>& list, int signal) {
  return std::find(list.begin(), list.end(), signal) != list.end();
}

}  // namespace

Supervisor::Supervisor(std::vector<RankName> ranks, SupervisionLimits limits, SignalMeaning signals)
    : limits_(limits), signals_(std::move(signals)), running_(ranks.size()) {
  ranks_.reserve(ranks.size());
  for (RankName& name : ranks) ranks_.push_back({.name = std::move(name), .ended = false});
}

void Supervisor::rank_started(int rank, pid_t pid) {
  Rank& started = at(rank);
  started.name.pid = pid;
  if (RankFailure* failure = failure_of(started)) failure->name.pid = pid;
  for (StoppedRank& stopped : outcome_.stopped) {
    if (stopped.name.rank == rank) stopped.name.pid = pid;
  }
  for (EarlyEnd& early : outcome_.early) {
    if (early.name.rank == rank) early.name.pid = pid;
  }
}

SignalOrders Supervisor::rank_ended(int rank, const RankEnd& end, RankTraces traces, Moment now) {
  Rank& ended = at(rank);
  if (!mark_ended(ended)) return {};
  if (RankFailure* aborted = failure_of(ended)) {  // by an earlier PMIx_Abort
    aborted->end = end;
    aborted->traces = within_budget(std::move(traces));
  } else if (phase_ == Phase::running && end.success() && end.restarts) {
    ++outcome_.ended_on_request;
    outcome_.resized = true;
    enter(Phase::resizing, limits_.resize_grace, now);
  } else if (phase_ == Phase::resizing && end.success() && !end.restarts && !outcome_.resized) {
    ended.succeeded = Moment{.steady = now.steady, .wall = end.time};
  } else if (phase_ == Phase::resizing) {
    if (end.restarts) outcome_.resized = true;
    ++outcome_.ended_on_request;
    if (!fits_resize(end)) return terminate(SIGTERM, now);  // the others may wait for it
  } else if (going_on() || is_late_cause(end, now)) {
    if (end.success()) {
      ended.succeeded = Moment{.steady = now.steady, .wall = end.time};
    } else {
      note_failure(ended,
                   {.name = ended.name, .end = end, .time = end.time, .traces = within_budget(std::move(traces))}, now);
    }
  } else if (phase_ >= Phase::killing && end.by_signal && end.code == SIGKILL) {
    ++outcome_.killed;
  } else {
    ++outcome_.ended_on_request;
  }
  return {};
}

SignalOrders Supervisor::rank_aborted(int rank, AbortCall call, Moment now) {
  if (phase_ == Phase::resizing)
    return terminate(SIGTERM, now);  // as a failure then: no cause, but the others may wait
  if (!going_on()) return {};        // the last end does not matter: the call may arrive after it
  Rank& caller = at(rank);
  if (RankFailure* known = failure_of(caller)) {
    known->abort = std::move(call);
  } else {
    note_failure(caller, {.name = caller.name, .abort = std::move(call), .time = now.wall}, now);
  }
  // No grace: the rank asked for the end of the job.
  return terminate(SIGTERM, now);
}

void Supervisor::rank_stopped(int rank, int signal, Moment now) {
  Rank& stopped = at(rank);
  if (!stopped.ended && !stopped.stop) stopped.stop = Stop{.signal = signal, .since = now};
}

void Supervisor::rank_continued(int rank) { at(rank).stop.reset(); }

SignalOrders Supervisor::node_failed(NodeFailure failure, int first_rank, Moment now) {
  if (done()) return {};
  int lost = 0;
  for (int i = 0; i < failure.num_ranks; ++i) lost += mark_ended(at(first_rank + i)) ? 1 : 0;
  // A signal or --timeout that ends the job may end agents, too: they are no cause.
  const bool ended_by_user = outcome_.forwarded_signal != 0 || outcome_.timed_out;
  if (!going_on() && ended_by_user && outcome_.failures.empty() && outcome_.nodes.empty()) {
    outcome_.lost += lost;
    return {};
  }
  if (outcome_.nodes.empty()) outcome_.rank_failed_first = !outcome_.failures.empty();
  if (failure.silent_before) {
    outcome_.rank_failed_first = false;
    outcome_.nodes.insert(outcome_.nodes.begin(), std::move(failure));
  } else {
    outcome_.nodes.push_back(std::move(failure));
  }
  return may_terminate() ? terminate(SIGTERM, now) : SignalOrders{};
}

SignalOrders Supervisor::signal_received(int signal, Moment now, bool by_slurm) {
  if (!contains(signals_.ending, signal)) {
    if (!contains(signals_.forwarded, signal)) return {};
    return {{.target = SignalOrder::Target::workers, .signal = signal}};
  }
  if (done() && outcome_.success()) return {};
  if (going_on() && !done() && outcome_.failures.empty()) note_early(kSameCause, now);
  // Also of a failing job: the user wants no restart.
  outcome_.end_by(signal);
  if (outcome_.failures.empty()) {
    for (Rank& each : ranks_) each.failure.reset();
  }
  if (done() || phase_ == Phase::killing) return {};
  if (signal == SIGINT && ++interrupts_ > 1) return kill(now);
  if (may_terminate()) return terminate(signal, now);
  if (phase_ == Phase::examining) return after_examination_ == Phase::killing ? kill(now) : terminate(signal, now);
  if (signal == SIGQUIT && ended_with_ == SIGQUIT && !by_slurm) return examine(Phase::killing, now);
  // Slurm signals a batch script's ddprun and its agents for one cause; ranks must not start saving their state twice.
  if (signal == ended_with_ && now.steady < ended_at_ + kSameCause) return {};
  ended_with_ = signal;
  ended_at_ = now.steady;
  return {{.target = SignalOrder::Target::groups, .signal = signal}};  // the running limit stays
}

SignalOrders Supervisor::job_timed_out(Moment now) {
  if (done() && outcome_.success()) return {};
  if (going_on() && !done() && outcome_.failures.empty()) note_early(kSameCause, now);
  if (outcome_.forwarded_signal == 0) outcome_.timed_out = true;
  if (!may_terminate() || done()) return {};
  return phase_ == Phase::running ? examine(Phase::terminating, now) : terminate(SIGTERM, now);
}

SignalOrders Supervisor::resize(const ResizeManner& manner, Moment now) {
  if (phase_ != Phase::running || done()) return {};
  outcome_.resized = manner.how != ResizeManner::How::finish;  // ranks may still end the job with success
  if (manner.how == ResizeManner::How::stop) return terminate(SIGTERM, now);
  enter(Phase::resizing, manner.grace, now);
  if (manner.how == ResizeManner::How::finish) return {};
  resize_signal_ = manner.signal;
  return {{.target = SignalOrder::Target::workers, .signal = manner.signal}};
}

SignalOrders Supervisor::end_hung(const std::vector<int>& ranks, std::chrono::milliseconds time, Moment now) {
  if (phase_ != Phase::running) return {};
  SignalOrder order{.target = SignalOrder::Target::some, .signal = SIGKILL};
  for (const int rank : ranks) {
    if (at(rank).ended) continue;
    at(rank).hung = time;
    order.ranks.push_back(rank);
  }
  if (order.ranks.empty()) return {};
  enter(Phase::grace, limits_.kill_patience, now);  // should none end, all are ended
  return {std::move(order)};
}

SignalOrders Supervisor::examined(Moment now) {
  if (phase_ != Phase::examining) return {};
  return after_examination_ == Phase::killing ? kill(now) : terminate(SIGTERM, now);
}

SignalOrders Supervisor::time_passed(Moment now) {
  if (!phase_end_ || now.steady < phase_end_->when()) return {};
  switch (phase_) {
    case Phase::grace:
    case Phase::resizing: return terminate(SIGTERM, now);
    case Phase::examining: return examined(now);
    case Phase::terminating: return kill(now);
    case Phase::killing:
      for (const Rank& left : ranks_) {
        if (!left.ended) outcome_.unkillable.push_back(left.name);
      }
      phase_ = Phase::abandoned;
      phase_end_.reset();
      return {};
    case Phase::running:
    case Phase::abandoned: return {};
  }
  return {};
}

std::vector<RankName> Supervisor::left() const {
  std::vector<RankName> left;
  for (const Rank& rank : ranks_) {
    if (!rank.ended) left.push_back(rank.name);
  }
  return left;
}

bool Supervisor::mark_ended(Rank& rank) {
  if (rank.ended) return false;
  rank.ended = true;
  rank.stop.reset();
  --running_;
  return true;
}

RankFailure* Supervisor::failure_of(const Rank& rank) {
  return rank.failure ? &outcome_.failures.at(*rank.failure) : nullptr;
}

void Supervisor::note_failure(Rank& rank, RankFailure failure, Moment now) {
  const bool first = outcome_.failures.empty();
  failure.hung = rank.hung;
  const std::size_t place =
      !first && failure.end && is_late_cause(*failure.end, now) ? place_before_reactions() : outcome_.failures.size();
  if (place < outcome_.failures.size()) {
    for (Rank& other : ranks_) {
      if (other.failure && *other.failure >= place) ++*other.failure;
    }
  }
  rank.failure = place;
  outcome_.failures.insert(outcome_.failures.begin() + static_cast<std::ptrdiff_t>(place), std::move(failure));
  if (!first) return;
  first_failure_ = now.steady;
  note_stopped(now);
  note_early(std::chrono::milliseconds(0), now);
  enter(Phase::grace, limits_.failure_grace, now);
}

bool Supervisor::is_late_cause(const RankEnd& end, Moment now) const {
  return !outcome_.failures.empty() && phase_ <= Phase::terminating && is_crash(end) &&
         now.steady - first_failure_ <= kReactionTime;
}

std::size_t Supervisor::place_before_reactions() const {
  const auto place = std::find_if(outcome_.failures.begin(), outcome_.failures.end(), [](const RankFailure& known) {
    return !known.abort && known.end && !is_crash(*known.end);
  });
  return static_cast<std::size_t>(place - outcome_.failures.begin());
}

void Supervisor::note_stopped(Moment now) {
  for (const Rank& other : ranks_) {
    if (!other.stop) continue;
    outcome_.stopped.push_back(
        {.name = other.name,
         .signal = other.stop->signal,
         .before_failure = std::chrono::duration_cast<std::chrono::milliseconds>(now.steady - other.stop->since.steady),
         .time = other.stop->since.wall});
  }
  std::stable_sort(outcome_.stopped.begin(), outcome_.stopped.end(),
                   [](const StoppedRank& a, const StoppedRank& b) { return a.before_failure > b.before_failure; });
}

void Supervisor::note_early(std::chrono::milliseconds least, Moment now) {
  for (const Rank& other : ranks_) {
    if (!other.succeeded || other.failure) continue;
    const auto before = std::chrono::duration_cast<std::chrono::milliseconds>(now.steady - other.succeeded->steady);
    if (before >= least) {
      outcome_.early.push_back({.name = other.name, .before_failure = before, .time = other.succeeded->wall});
    }
  }
  std::stable_sort(outcome_.early.begin(), outcome_.early.end(),
                   [](const EarlyEnd& a, const EarlyEnd& b) { return a.before_failure > b.before_failure; });
}

RankTraces Supervisor::within_budget(RankTraces traces) {
  const std::size_t size = traces.error_content.size() + traces.stderr_tail.size();
  if (size > kMaxTraceBytes - trace_bytes_) {
    traces.error_content.clear();
    traces.stderr_tail.clear();
  } else {
    trace_bytes_ += size;
  }
  return traces;
}

void Supervisor::enter(Phase phase, std::chrono::milliseconds limit, Moment now) {
  phase_ = phase;
  phase_end_ = Deadline{now.steady + limit};
}

SignalOrders Supervisor::terminate(int signal, Moment now) {
  if (phase_ == Phase::resizing) outcome_.resized = true;
  enter(Phase::terminating, limits_.shutdown_timeout, now);
  ended_with_ = signal;
  ended_at_ = now.steady;
  // Then SIGCONT, so that stopped processes can react.
  return {{.target = SignalOrder::Target::groups, .signal = signal},
          {.target = SignalOrder::Target::groups, .signal = SIGCONT}};
}

SignalOrders Supervisor::examine(Phase next, Moment now) {
  after_examination_ = next;
  enter(Phase::examining, limits_.examination, now);
  if (limits_.examination == std::chrono::milliseconds(0)) return examined(now);
  return {{.target = SignalOrder::Target::stacks, .signal = 0}};
}

SignalOrders Supervisor::kill(Moment now) {
  const bool ended_by_user = outcome_.forwarded_signal != 0 || outcome_.timed_out;
  enter(Phase::killing,
        ended_by_user ? std::min(limits_.kill_patience, limits_.final_kill_patience) : limits_.kill_patience, now);
  return {{.target = SignalOrder::Target::groups, .signal = SIGKILL}};
}

}  // namespace ddp::launcher
