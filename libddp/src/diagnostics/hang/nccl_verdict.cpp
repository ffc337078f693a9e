// Who hangs by what NCCL's RAS says, where no flight recorder tells: its ranks wait in loops, and look busy.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "diagnostics/hang/hang_judge.hpp"

namespace ddp::diagnostics {

std::vector<int> ranks_behind(const JobObservation& job, const NcclTrouble& trouble) {
  std::set<int> ranks;
  for (const pid_t pid : trouble.behind) {
    const auto is_it = [pid](const RankFacts& rank) { return rank.pid == pid; };
    // Processes of several hosts may have the same number.
    if (std::count_if(job.ranks.begin(), job.ranks.end(), is_it) == 1)
      ranks.insert(std::find_if(job.ranks.begin(), job.ranks.end(), is_it)->rank);
  }
  return {ranks.begin(), ranks.end()};
}

void judge_by_nccl(const JobObservation& job, HangVerdict& verdict) {
  if (verdict.answer == HangAnswer::hangs && !verdict.likely) return;
  for (const NcclTrouble& trouble : job.nccl) {
    std::vector<int> behind = ranks_behind(job, trouble);
    if (behind.empty()) continue;
    verdict.answer = HangAnswer::hangs;
    verdict.likely = true;
    verdict.text = fmt::format("likely {}; NCCL: {}", describe_culprits(job, behind), trouble.text);
    verdict.culprits = std::move(behind);
    return;
  }
}

}  // namespace ddp::diagnostics
