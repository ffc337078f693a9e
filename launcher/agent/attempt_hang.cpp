// Whether this node's ranks get on, and what they do, for the coordinator's judgement of who hangs.
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/attempt.hpp"
#include "workers/worker_environment.hpp"

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

// The stacks of this node's ranks, when the coordinator asks for them.

namespace {

// Four fifths of a second where /proc answers.
constexpr std::chrono::seconds kObservationLimit{5};

}  // namespace

/// Tools stop a rank for a moment: what the ranks do is looked at before.
void Attempt::collect_stacks(const control::CollectStacks& order) {
  if (stacks_ || stacks_due_) return;
  const Deadline deadline = Deadline::after(std::chrono::milliseconds{order.limit_ms});
  observe_ranks(earlier(deadline, Deadline::after(kObservationLimit)));
  if (!observer_) return begin_stacks(deadline);
  stacks_due_ = deadline;
}

void Attempt::begin_stacks(Deadline deadline) {
  std::vector<diagnostics::RankProcess> ranks;
  for (int local = 0; local < static_cast<int>(workers_->size()); ++local) {
    if (workers_->pidfd(local) >= 0) ranks.push_back({.rank = local, .pid = workers_->pid(local)});
  }
  // A virtual environment may have its own py-spy.
  const std::string& program = job_.command.path;
  const std::string folder =
      program.find('/') != std::string::npos ? std::filesystem::path(program).parent_path().string() : std::string{};
  try {
    stacks_ = std::make_unique<diagnostics::StackGatherer>(
        std::move(ranks),
        diagnostics::StackTools::find(folder, job_.environment.raw("PATH").value_or("/bin:/usr/bin"),
                                      environment_lines(job_.environment.variables())),
        job_.host, deadline);
    loop_.watch(stacks_->fd(), [this] { send_stacks(); });
  } catch (const std::exception& error) {
    stacks_.reset();
    send(control::StacksCollected{.epoch = plan_.epoch, .notes = {{.hosts = {job_.host}, .text = error.what()}}});
  }
}

void Attempt::send_stacks() {
  if (!stacks_) return;
  std::optional<RankStacks> stacks = stacks_->take();
  if (!stacks) return;
  loop_.forget(stacks_->fd());
  stacks_.reset();
  send(control::StacksCollected{
      .epoch = plan_.epoch, .groups = std::move(stacks->groups), .notes = std::move(stacks->notes)});
}

}  // namespace ddp::launcher
