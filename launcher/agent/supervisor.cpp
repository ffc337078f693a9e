#include "agent/supervisor.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace ddp::launcher {

Supervisor::Supervisor(std::vector<RankName> ranks, SupervisionLimits limits)
    : limits_(limits), running_(ranks.size()) {
  for (const RankName& name : ranks) ranks_.push_back({.name = name, .ended = false, .stop = {}});
}

SignalOrders Supervisor::rank_ended(int local_rank, const RankEnd& end, Moment now) {
  Rank& ended = rank(local_rank);
  if (ended.ended) return {};
  ended.ended = true;
  ended.stop.reset();
  --running_;
  if (phase_ == Phase::running || phase_ == Phase::grace) {
    if (!end.success()) note_failure({.name = ended.name, .end = end, .abort = {}, .time = end.time}, now);
    return {};
  }
  // It had been asked to end; only a rank that called PMIx_Abort before is a failure of its own.
  const auto aborted = std::find_if(outcome_.failures.begin(), outcome_.failures.end(),
                                    [&](const RankFailure& failure) { return failure.name.rank == ended.name.rank; });
  if (aborted != outcome_.failures.end()) {
    aborted->end = end;
  } else if (phase_ != Phase::terminating && end.by_signal && end.code == SIGKILL) {
    ++outcome_.killed;
  } else {
    ++outcome_.ended_on_request;
  }
  return {};
}

SignalOrders Supervisor::rank_aborted(int local_rank, AbortCall call, Moment now) {
  const Rank& aborted = rank(local_rank);
  if (phase_ != Phase::running && phase_ != Phase::grace) return {};
  const auto known = std::find_if(outcome_.failures.begin(), outcome_.failures.end(),
                                  [&](const RankFailure& failure) { return failure.name.rank == aborted.name.rank; });
  if (known != outcome_.failures.end()) {
    known->abort = std::move(call);
  } else {
    note_failure({.name = aborted.name, .end = {}, .abort = std::move(call), .time = now.wall}, now);
  }
  // The rank asked for the end of the job: the others have nothing to find out.
  return terminate(SIGTERM, now);
}

void Supervisor::rank_stopped(int local_rank, int signal, Moment now) {
  Rank& stopped = rank(local_rank);
  if (!stopped.ended && !stopped.stop) stopped.stop = Stop{.signal = signal, .since = now};
}

void Supervisor::rank_continued(int local_rank) { rank(local_rank).stop.reset(); }

SignalOrders Supervisor::signal_received(int signal, Moment now) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return {{.target = SignalOrder::Target::workers, .signal = signal}};
  if (phase_ == Phase::killing || phase_ == Phase::abandoned) return {};
  if (signal == SIGINT && ++interrupts_ > 1) return kill(now);
  if (outcome_.failures.empty() && outcome_.forwarded_signal == 0) outcome_.forwarded_signal = signal;
  if (phase_ != Phase::terminating) return terminate(signal, now);
  return {{.target = SignalOrder::Target::groups, .signal = signal}};  // the limit that is running stays
}

SignalOrders Supervisor::time_passed(Moment now) {
  if (!phase_end_ || now.steady < phase_end_->when()) return {};
  switch (phase_) {
    case Phase::grace: return terminate(SIGTERM, now);
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

std::optional<Deadline> Supervisor::next_deadline() const { return phase_end_; }

JobOutcome Supervisor::outcome() const { return outcome_; }

void Supervisor::note_failure(RankFailure failure, Moment now) {
  const bool first = outcome_.failures.empty();
  outcome_.failures.push_back(std::move(failure));
  if (!first) return;
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
  enter(Phase::grace, limits_.failure_grace, now);
}

void Supervisor::enter(Phase phase, std::chrono::milliseconds limit, Moment now) {
  phase_ = phase;
  phase_end_ = Deadline{now.steady + limit};
}

SignalOrders Supervisor::terminate(int signal, Moment now) {
  enter(Phase::terminating, limits_.shutdown_timeout, now);
  // SIGCONT after it, so that stopped processes can react.
  return {{.target = SignalOrder::Target::groups, .signal = signal},
          {.target = SignalOrder::Target::groups, .signal = SIGCONT}};
}

SignalOrders Supervisor::kill(Moment now) {
  enter(Phase::killing, limits_.kill_patience, now);
  return {{.target = SignalOrder::Target::groups, .signal = SIGKILL}};
}

}  // namespace ddp::launcher
