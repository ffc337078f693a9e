// The last look at ranks that do not move: all nodes read their stacks at once, before ranks are ended. And whom the
// user waits for then.
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/signal_name.hpp"
#include "coordinator/coordinator.hpp"

namespace ddp::launcher {

void Coordinator::announce_end(int signal) {
  if (signal == SIGCONT || signal == SIGSTOP) return;
  if (signal == SIGKILL) return notice_.stop();
  const JobOutcome& outcome = attempt_->supervisor().outcome();
  const bool by_signal = outcome.forwarded_signal != 0;
  const std::string cause = by_signal               ? base::signal_name(signal)
                            : outcome.timed_out     ? "--timeout"
                            : outcome.nodes.empty() ? "a rank failed"
                                                    : "a node failed";
  const auto limit = attempt_->supervisor().next_deadline();
  if (limit) notice_.begin(cause, by_signal ? signal : 0, *limit, clock_().steady);
}

void Coordinator::ask_for_stacks() {
  stacks_ = {};
  stacks_asked_ = true;
  hang_.ask(nodes_with_ranks(), after(options_.stack_limit));
  notice_.stop();
  for (const AttemptNode& node : attempt_->nodes()) {
    if (!node.may_have_ranks()) continue;
    stacks_due_.insert(node.rank);
    links_.send(node.link, control::CollectStacks{.epoch = attempt_->epoch(),
                                                  .limit_ms = static_cast<int>(options_.stack_limit.count())});
  }
  const std::size_t ranks = attempt_->supervisor().left().size();
  events_.note(fmt::format("{}: reading the stacks of {} rank{}, up to {} s; press Ctrl-C to skip this",
                           attempt_->supervisor().outcome().timed_out ? "--timeout" : "SIGQUIT", ranks,
                           ranks == 1 ? "" : "s",
                           std::chrono::duration_cast<std::chrono::seconds>(options_.stack_limit).count()));
}

void Coordinator::handle_stacks(const AttemptNode& node, const control::StacksCollected& message) {
  if (stacks_due_.erase(node.rank) == 0) return;
  for (StackGroup group : message.groups) {
    std::erase_if(group.ranks, [&](int local) { return local >= node.layout.nproc; });
    for (int& rank : group.ranks) rank += node.first_rank;
    stacks_.add(std::move(group), diagnostics::kMaxJobStackBytes);
  }
  for (const StackNote& note : message.notes) stacks_.note(node.layout.host, note.text);
}

/// Goes on once all have come, or the supervisor has not waited for them. Nodes that are lost or silent will not
/// answer.
void Coordinator::settle_stacks() {
  if (!stacks_asked_) return;
  Supervisor& supervisor = attempt_->supervisor();
  for (const AttemptNode& node : attempt_->nodes()) {
    const bool given_up = !supervisor.examining() || !node.may_have_ranks() || links_.is_silent(node.link);
    if (given_up && stacks_due_.erase(node.rank) > 0)
      stacks_.note(node.layout.host, "the stacks of this node did not come in time");
  }
  if (!stacks_due_.empty()) return;
  stacks_asked_ = false;
  if (auto report = hang_.conclude_end()) hang_report_ = std::move(report);
  follow(supervisor.examined(clock_()));
}

}  // namespace ddp::launcher
