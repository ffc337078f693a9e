#include "agent/arrival_desk.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddp::launcher {
namespace {

// Half of it is for the coordinator and the other nodes, where the asker has no limit.
constexpr std::chrono::milliseconds kNoLimit{4000};

}  // namespace

void ArrivalDesk::add(const ModexCall& call, Time now) {
  Question& question = questions_[call.arrival];
  if (question.asked_at == Time{} || now - question.asked_at >= control::kAbsentFresh) {
    question.asked_at = now;
    question.absent.reset();
    const auto left =
        call.limit ? std::chrono::duration_cast<std::chrono::milliseconds>(call.limit->when() - now) : kNoLimit;
    ask_({.epoch = epoch_,
          .name = call.arrival,
          .limit_ms = static_cast<int>(std::clamp(left / 2, std::chrono::milliseconds{0}, kNoLimit).count())});
  }
  question.absent ? settle(call, *question.absent) : question.waiting.push_back(call);
}

void ArrivalDesk::found(const control::AbsentFound& found) {
  const auto question = questions_.find(found.name);
  if (question == questions_.end()) return;
  question->second.absent = found.ranks;
  for (const ModexCall& call : std::exchange(question->second.waiting, {})) settle(call, found.ranks);
}

void ArrivalDesk::settle(const ModexCall& call, const std::vector<control::RankRange>& absent) const {
  const auto after = std::upper_bound(absent.begin(), absent.end(), call.rank,
                                      [](int rank, const control::RankRange& range) { return rank < range.first; });
  const bool is_absent = after != absent.begin() && call.rank < std::prev(after)->first + std::prev(after)->count;
  if (!is_absent) answer_(call.id);
}

std::vector<control::RankRange> ranges_of(const std::vector<int>& ranks) {
  std::vector<control::RankRange> ranges;
  for (const int rank : ranks) {
    if (!ranges.empty() && rank == ranges.back().first + ranges.back().count) {
      ++ranges.back().count;
    } else {
      ranges.push_back({.first = rank, .count = 1});
    }
  }
  return ranges;
}

}  // namespace ddp::launcher
