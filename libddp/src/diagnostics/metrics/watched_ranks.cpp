#include "diagnostics/metrics/watched_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/signal_name.hpp"
#include "diagnostics/metrics/rank_metrics.hpp"

namespace ddp::diagnostics {
namespace {

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

void WatchedRanks::begin(std::size_t count) {
  count_ = count;
  ranks_.clear();
}

void WatchedRanks::started(int rank, pid_t pid) {
  Rank& now = ranks_[rank];
  now.failed = false;
  now.probe.emplace(pid);
}

void WatchedRanks::ended(int rank, int code, bool by_signal) {
  Rank& now = ranks_[rank];
  now.failed = by_signal || code != 0;
  now.probe.reset();
  ++exits_[by_signal ? std::pair{std::string{}, base::signal_name(code)}
                     : std::pair{std::to_string(code), std::string{}}];
}

void WatchedRanks::add_to(MetricsPage& page) {
  int running = 0, stopped = 0, ended = 0, failed = 0;
  for (auto& [rank, now] : ranks_) {
    const RankUse use = now.probe ? now.probe->look() : RankUse{};
    ++(now.failed ? failed : !now.probe ? ended : use.stopped ? stopped : running);
    add_rank(page, rank, use);
  }
  const auto known = static_cast<int>(ranks_.size());
  const std::pair<const char*, int> states[] = {{"starting", std::max(0, static_cast<int>(count_) - known)},
                                                {"running", running},
                                                {"stopped", stopped},
                                                {"ended", ended},
                                                {"failed", failed}};
  for (const auto& [state, number] : states) page.add(Metric::ranks, number, {{"state", state}});
  for (const auto& [end, number] : exits_)
    page.add(Metric::rank_exits, number, {{"code", end.first}, {"signal", end.second}});
}

std::vector<StepProgress> WatchedRanks::progress() {
  std::vector<StepProgress> all;
  for (auto& [rank, now] : ranks_) {
    if (!now.probe) continue;
    const RankUse use = now.probe->look();
    if (!use.flight || !use.flight->sums || use.flight->sums->steps == 0) continue;
    const flight::FlightView::Sums& sums = *use.flight->sums;
    all.push_back({.rank = rank,
                   .steps = static_cast<std::int64_t>(sums.steps),
                   .step_ns = nanoseconds(sums.step_s),
                   .communication_ns = nanoseconds(sums.communication_s),
                   .hidden_ns = nanoseconds(sums.hidden_s),
                   .straggler_rank = sums.straggler_rank,
                   .straggler_delay_ns = nanoseconds(sums.straggler_delay_s)});
  }
  return all;
}

}  // namespace ddp::diagnostics
