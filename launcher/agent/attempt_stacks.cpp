// The stacks of this node's ranks, when the coordinator asks for them.
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
