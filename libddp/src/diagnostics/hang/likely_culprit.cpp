// Who hangs where no flight recorder tells: processes that wait for others, and those that do not.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/whereabouts.hpp"

namespace ddp::diagnostics {

HangVerdict judge_processes(const JobObservation& job) {
  HangVerdict verdict;
  if (job.ranks.empty()) {
    verdict.text = "cannot tell: no rank was found";
    return verdict;
  }
  std::map<Place, std::vector<int>> places;
  bool moving = false;
  for (const RankFacts& rank : job.ranks) {
    const Place place = place_of_process(rank);
    places[place].push_back(rank.rank);
    const bool at_rest = place == Place::waiting || place == Place::asleep || place == Place::in_io;
    if (at_rest && !rank.steady && !rank.swaps) moving = true;
  }
  std::vector<int> ended = places[Place::exited];
  if (job.whole) {
    for (int rank = 0; rank < job.world_size(); ++rank) {
      const auto same = [&](const RankFacts& each) { return each.rank == rank; };
      if (std::none_of(job.ranks.begin(), job.ranks.end(), same)) ended.push_back(rank);
    }
  }
  std::sort(ended.begin(), ended.end());
  const std::vector<int> stopped = places[Place::stopped];
  const std::vector<int> waiting = places[Place::waiting];
  const std::size_t alive = job.ranks.size() - places[Place::exited].size();
  const auto accuse = [&](std::vector<int> culprits, bool likely) {
    verdict.answer = HangAnswer::hangs;
    verdict.likely = likely;
    verdict.text = fmt::format("{}{}", likely ? "likely " : "", describe_culprits(job, culprits));
    if (likely && !waiting.empty()) {
      verdict.text +=
          fmt::format("; {} {} for something else", format_ranks(waiting), waiting.size() == 1 ? "waits" : "wait");
    }
    verdict.culprits = std::move(culprits);
    return verdict;
  };
  if (!stopped.empty()) return accuse(stopped, false);
  if (moving) {
    verdict.answer = HangAnswer::nothing_hangs;
    verdict.text = "nothing hangs, as far as processes tell: some change between two looks";
    return verdict;
  }
  if (!ended.empty() && alive > 0 && waiting.size() == alive) return accuse(std::move(ended), true);
  // Nobody waits for those that wait.
  if (!waiting.empty() && waiting.size() < alive) {
    std::vector<int> others;
    for (const Place place : {Place::in_io, Place::asleep, Place::computing, Place::starting, Place::unknown})
      others.insert(others.end(), places[place].begin(), places[place].end());
    std::sort(others.begin(), others.end());
    const std::vector<int>& computing = places[Place::computing];
    // Many that compute may be waiting in a loop, as those of NCCL do.
    if (others.size() <= waiting.size() || computing.empty()) return accuse(std::move(others), true);
  }
  if (places[Place::computing].size() == alive && alive > 0) {
    verdict.answer = HangAnswer::nothing_hangs;
    verdict.text = alive == 1 ? "nothing hangs, as far as processes tell: it computes"
                              : "nothing hangs, as far as processes tell: all compute, or wait in a loop";
    return verdict;
  }
  for (const Place place : {Place::in_io, Place::asleep, Place::waiting}) {
    if (!places[place].empty() && 2 * places[place].size() < alive) return accuse(places[place], true);
  }
  verdict.text =
      waiting.size() == alive
          ? "cannot tell: all ranks wait, and nothing says for whom (ddp-info status --stacks shows where they are)"
          : "cannot tell: nothing says who waits for whom (ddp-info status --stacks shows where they are)";
  return verdict;
}

}  // namespace ddp::diagnostics
