// The last look at ranks that do not move: all nodes read their stacks at once, before ranks are ended. And whom the
// user waits for then.
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/process.hpp"
#include "coordinator/coordinator.hpp"

namespace ddp::launcher {

void Coordinator::announce_end(int signal) {
  if (signal == SIGCONT || signal == SIGSTOP) return;
  if (signal == SIGKILL) return state_.notice.stop();
  const JobOutcome& outcome = attempt_->supervisor().outcome();
  const bool by_signal = outcome.forwarded_signal != 0;
  const std::string cause = by_signal               ? base::signal_name(signal)
                            : outcome.timed_out     ? "--timeout"
                            : outcome.resized       ? "nodes join or leave"
                            : outcome.nodes.empty() ? "a rank failed"
                                                    : "a node failed";
  const auto limit = attempt_->supervisor().next_deadline();
  if (limit) state_.notice.begin(cause, by_signal ? signal : 0, *limit, clock_().steady);
}

void Coordinator::ask_for_stacks() {
  state_.stacks = {};
  state_.stacks_asked = true;
  state_.hang.ask(nodes_with_ranks(), after(options_.stack_limit));
  state_.notice.stop();
  for (const AttemptNode& node : attempt_->nodes()) {
    if (!node.may_have_ranks()) continue;
    state_.stacks_due.insert(node.rank);
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
  if (state_.stacks_due.erase(node.rank) == 0) return;
  for (StackGroup group : message.groups) {
    std::erase_if(group.ranks, [&](int local) { return local >= node.layout.nproc; });
    for (int& rank : group.ranks) rank += node.first_rank;
    state_.stacks.add(std::move(group), diagnostics::kMaxJobStackBytes);
  }
  for (const StackNote& note : message.notes) state_.stacks.note(node.layout.host, note.text);
}

/// Goes on once all have come, or the supervisor has not waited for them. Nodes that are lost or silent will not
/// answer.
void Coordinator::settle_stacks() {
  if (!state_.stacks_asked) return;
  Supervisor& supervisor = attempt_->supervisor();
  for (const AttemptNode& node : attempt_->nodes()) {
    const bool given_up = !supervisor.examining() || !node.may_have_ranks() || links_.is_silent(node.link);
    if (given_up && state_.stacks_due.erase(node.rank) > 0)
      state_.stacks.note(node.layout.host, "the stacks of this node did not come in time");
  }
  if (!state_.stacks_due.empty()) return;
  state_.stacks_asked = false;
  if (auto report = state_.hang.conclude_end()) state_.hang_report = std::move(report);
  follow(supervisor.examined(clock_()));
}

}  // namespace ddp::launcher
