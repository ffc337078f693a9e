// The root cause of a failure, and the exit status that follows from it.
#include "outcome/job_outcome.hpp"

#include <algorithm>

namespace ddp::launcher {
namespace {

constexpr int kExitTimeout = 124;  // that of timeout(1)
constexpr int kExitFailure = 1;

int status_of(const RankFailure& failure) {
  int status = 0;
  if (failure.abort) {
    status = failure.abort->status & 0xff;  // what a process can return
  } else if (failure.end) {
    status = failure.end->exit_status();
  }
  return status != 0 ? status : kExitFailure;
}

}  // namespace

void JobOutcome::end_by(int signal) {
  if (forwarded_signal == 0 && !timed_out) forwarded_signal = signal;
  const bool same = std::all_of(failures.begin(), failures.end(), [signal](const RankFailure& failure) {
    return !failure.abort && failure.end && failure.end->by_signal && failure.end->code == signal;
  });
  if (!same || !stopped.empty()) return;
  ended_on_request += static_cast<int>(failures.size());
  failures.clear();
}

RootCause JobOutcome::root_cause() const {
  const bool node_first = !nodes.empty() && (failures.empty() || !rank_failed_first);
  if (node_first) return RootCause::node;
  if (!stopped.empty()) return RootCause::stopped_rank;
  if (!failures.empty()) return RootCause::rank;
  if (forwarded_signal != 0) return RootCause::signal;
  if (timed_out) return RootCause::timeout;
  return unkillable.empty() ? RootCause::none : RootCause::unkillable;
}

int JobOutcome::exit_status() const {
  switch (root_cause()) {
    case RootCause::none: return resized ? kExitFailure : 0;
    case RootCause::node: return nodes.front().exit_status != 0 ? nodes.front().exit_status : kExitFailure;
    case RootCause::stopped_rank:
    case RootCause::rank: return failures.empty() ? kExitFailure : status_of(failures.front());
    case RootCause::signal: return 128 + forwarded_signal;
    case RootCause::timeout: return kExitTimeout;
    case RootCause::unkillable: return kExitFailure;
  }
  return kExitFailure;
}

}  // namespace ddp::launcher
