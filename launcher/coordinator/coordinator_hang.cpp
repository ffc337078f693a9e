// A job in which nothing moves: all nodes say what their ranks do, and the user reads who is missing.
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/process.hpp"
#include "coordinator/coordinator.hpp"

namespace ddp::launcher {
namespace {

// For nodes to look for a second, and for busy ones to answer.
constexpr std::chrono::seconds kLookLimit{10};
constexpr std::chrono::seconds kAnswerReserve{2};

std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

std::set<int> Coordinator::nodes_with_ranks() const {
  std::set<int> nodes;
  for (const AttemptNode& node : attempt_->nodes()) {
    if (node.may_have_ranks()) nodes.insert(node.rank);
  }
  return nodes;
}

void Coordinator::handle_still(const AttemptNode& node, const control::RanksStill& message) {
  state_.hang.note(node.rank, message.still, clock_().steady);
}

void Coordinator::handle_observed(const AttemptNode& node, const control::RanksObserved& message) {
  diagnostics::HostFacts facts{.host = node.layout.host};
  try {
    facts = diagnostics::decode_host_facts(message.facts);
  } catch (const Error& error) {
    facts.notes.emplace_back(error.what());
  }
  std::erase_if(facts.ranks, [&](const diagnostics::RankFacts& each) {
    return each.rank < node.first_rank || each.rank >= node.first_rank + node.layout.nproc;
  });
  state_.hang.answer(node.rank, std::move(facts));
}

/// While the job goes on. What ends it asks for stacks, and with them for the same facts.
void Coordinator::look_for_hang() {
  if (attempt_->supervisor().next_deadline()) return note_end_of_hang();
  const auto now = clock_().steady;
  const std::set<int> nodes = state_.hang.may_be_due(now) ? nodes_with_ranks() : std::set<int>{};
  if (state_.hang.is_due(nodes, now)) {
    for (const AttemptNode& node : attempt_->nodes()) {
      if (!node.may_have_ranks()) continue;
      links_.send(node.link,
                  control::ObserveRanks{.epoch = attempt_->epoch(),
                                        .limit_ms = static_cast<int>(std::chrono::milliseconds{kLookLimit}.count())});
    }
    state_.hang.ask(nodes, after(kLookLimit + kAnswerReserve));
  }
  if (!state_.hang.asking()) return;
  for (const AttemptNode& node : attempt_->nodes()) {
    if (links_.is_silent(node.link)) state_.hang.give_up(node.rank);
  }
  if (!state_.hang.complete(now)) return;
  if (const auto report = state_.hang.conclude_standstill(now))
    events_.note(fmt::format("{}: {}", report->when, without_last_newline(report->text)));
  end_hung();
}

/// Those that the others wait for, or all, where these are not known.
void Coordinator::end_hung() {
  const std::vector<int>& ranks = state_.hang.to_end();
  if (ranks.empty()) return;
  const SignalOrders orders = attempt_->supervisor().end_hung(ranks, *options_.end_hung, clock_());
  if (!orders.empty()) events_.note(fmt::format("killing {} (--end-hung)", format_ranks(orders.front().ranks)));
  follow(orders);
}

void Coordinator::kill_some(const std::vector<int>& ranks) {
  for (const AttemptNode& node : attempt_->nodes()) {
    control::KillRanks order{.epoch = attempt_->epoch()};
    for (const int rank : ranks) {
      if (rank >= node.first_rank && rank < node.first_rank + node.layout.nproc)
        order.local_ranks.push_back(rank - node.first_rank);
    }
    if (!order.local_ranks.empty()) links_.send(node.link, order);
  }
}

/// The job has begun to end.
void Coordinator::note_end_of_hang() {
  if (std::exchange(state_.hang_ended, true)) return;
  state_.hang_report = state_.hang.report_at_failure(clock_().steady);
}

// The last look at ranks that do not move: all nodes read their stacks at once, before ranks are ended. And whom the
// user waits for then.

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
