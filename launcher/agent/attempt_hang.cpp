// Whether this node's ranks get on, and what they do, for the coordinator's judgement of who hangs.
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "agent/attempt.hpp"

namespace ddp::launcher {

void Attempt::watch_standstill() {
  if (plan_.still_after_ms == 0) return;
  standstill_ =
      std::make_unique<diagnostics::StandstillWatch>(workers_->pids(), std::chrono::milliseconds{plan_.still_after_ms});
  loop_.watch(standstill_->fd(), [this] { send_standstill(); });
}

void Attempt::send_standstill() {
  const auto still = standstill_->take();
  if (still) send(control::RanksStill{.epoch = plan_.epoch, .still = *still});
}

void Attempt::observe_ranks(Deadline deadline) {
  if (observer_) return;
  std::vector<diagnostics::FoundRank> ranks;
  for (int local = 0; local < static_cast<int>(workers_->size()); ++local) {
    if (workers_->pidfd(local) < 0) continue;
    diagnostics::RankIdentity identity;
    identity.rank = global_rank(local);
    identity.world_size = ranks_.world_size;
    identity.local_size = ranks_.num_ranks;
    ranks.push_back({.pid = workers_->pid(local), .identity = std::move(identity)});
  }
  try {
    observer_ = std::make_unique<diagnostics::RankObserver>(std::move(ranks), job_.host, deadline);
    loop_.watch(observer_->fd(), [this] { send_observed(); });
  } catch (const std::exception& error) {
    observer_.reset();
    const diagnostics::HostFacts none{.host = job_.host, .notes = {error.what()}};
    send(control::RanksObserved{.epoch = plan_.epoch, .facts = diagnostics::encode(none)});
  }
}

void Attempt::send_observed() {
  if (!observer_) return;
  const auto facts = observer_->take();
  if (!facts) return;
  loop_.forget(observer_->fd());
  observer_.reset();
  send(control::RanksObserved{.epoch = plan_.epoch, .facts = diagnostics::encode(*facts)});
  if (stacks_due_) begin_stacks(*std::exchange(stacks_due_, std::nullopt));
}

}  // namespace ddp::launcher
