#include "diagnostics/metrics/job_progress.hpp"

#include <algorithm>

namespace ddp::diagnostics {

std::optional<ProgressFacts> JobProgress::add(int node, std::size_t nodes, int attempt,
                                              const std::vector<StepProgress>& ranks) {
  if (attempt != attempt_) {
    *this = {};
    attempt_ = attempt;
  }
  std::optional<ProgressFacts> facts;
  if (told_.contains(node)) facts = conclude();
  told_.insert(node);
  for (const StepProgress& rank : ranks) now_[rank.rank] = rank;
  if (!facts && told_.size() >= nodes) facts = conclude();
  return facts;
}

ProgressFacts JobProgress::conclude() {
  ProgressFacts facts;
  std::int64_t steps = 0, step_ns = 0, communication_ns = 0, hidden_ns = 0;
  std::map<int, int> votes;  // by straggler
  for (const auto& [rank, now] : now_) {
    const StepProgress before = last_line_.contains(rank) ? last_line_.at(rank) : StepProgress{};
    facts.least_steps = facts.ranks == 0 ? now.steps : std::min(facts.least_steps, now.steps);
    facts.most_steps = std::max(facts.most_steps, now.steps);
    ++facts.ranks;
    const std::int64_t own_steps = now.steps - before.steps;
    const std::int64_t own_ns = now.step_ns - before.step_ns;
    if (own_steps > 0) {
      const double own_s = static_cast<double>(own_ns) / static_cast<double>(own_steps) / 1e9;
      facts.slowest_s = std::max(facts.slowest_s.value_or(own_s), own_s);
    }
    steps += own_steps;
    step_ns += own_ns;
    communication_ns += now.communication_ns - before.communication_ns;
    hidden_ns += now.hidden_ns - before.hidden_ns;
    if (now.straggler_rank >= 0) ++votes[now.straggler_rank];
  }
  if (steps > 0) facts.step_s = static_cast<double>(step_ns) / static_cast<double>(steps) / 1e9;
  if (communication_ns > 0)
    facts.hidden = std::clamp(static_cast<double>(hidden_ns) / static_cast<double>(communication_ns), 0.0, 1.0);
  const auto most = std::max_element(votes.begin(), votes.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most != votes.end()) {
    facts.straggler_rank = most->first;
    for (const auto& [rank, now] : now_) {
      if (now.straggler_rank != most->first) continue;
      facts.straggler_delay_s = std::max(facts.straggler_delay_s, static_cast<double>(now.straggler_delay_ns) / 1e9);
    }
  }
  last_line_ = now_;
  told_.clear();
  return facts;
}

}  // namespace ddp::diagnostics
