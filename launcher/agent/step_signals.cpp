#include "agent/step_signals.hpp"

#include <utility>

namespace ddp::launcher {
namespace {

// An order follows the signal by way of the coordinator, which may be on another node.
constexpr std::chrono::seconds kArrivalCounts{10};

}  // namespace

void StepSignals::arrived(int signal) { arrivals_.insert_or_assign(signal, Deadline::after(kArrivalCounts)); }

void StepSignals::add(const control::SignalRanks& order) {
  const auto patience = order.may_have_reached_ranks ? patience_ : std::chrono::milliseconds(0);
  waiting_.push_back({.order = order, .limit = Deadline::after(patience)});
}

bool StepSignals::take_arrival(int signal) {
  const auto arrival = arrivals_.find(signal);
  if (arrival == arrivals_.end()) return false;
  const bool counts = !arrival->second.expired();
  arrivals_.erase(arrival);
  return counts;
}

std::vector<StepSignals::Settled> StepSignals::take_settled() {
  std::vector<Settled> settled;
  std::vector<Waiting> open;
  for (Waiting& each : waiting_) {
    const bool reached = take_arrival(each.order.signal);
    if (reached || each.limit.expired()) {
      settled.push_back({.order = each.order, .reached_ranks = reached});
    } else {
      open.push_back(each);
    }
  }
  waiting_ = std::move(open);
  return settled;
}

std::optional<Deadline> StepSignals::next_deadline() const {
  std::optional<Deadline> next;
  for (const Waiting& each : waiting_) next = next ? earlier(*next, each.limit) : each.limit;
  return next;
}

}  // namespace ddp::launcher
