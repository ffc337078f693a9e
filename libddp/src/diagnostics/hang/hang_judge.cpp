#include "diagnostics/hang/hang_judge.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "diagnostics/hang/whereabouts.hpp"

namespace ddp::diagnostics {
namespace {

using flight::FlightPhase;
using flight::FlightView;
using Wait = HangVerdict::Wait;

class Judge {
 public:
  Judge(const JobObservation& job, double after_s) : job_(job), after_s_(after_s), world_(job.world_size()) {
    for (const RankFacts& rank : job.ranks) by_rank_[rank.rank] = &rank;
  }
  HangVerdict verdict();

 private:
  const RankFacts* find(int rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  static const FlightView::Group* group_of(const RankFacts& rank, const std::string& name);
  static bool has_called_init(const RankFacts& rank);
  std::vector<int> missing_in(const RankFacts& rank, const FlightView::Call& call);
  void find_waits();
  void find_culprits();
  std::vector<int> odd_ones() const;
  HangVerdict none_missing();

  const JobObservation& job_;
  const double after_s_;
  const int world_;
  std::map<int, const RankFacts*> by_rank_;
  std::vector<Wait> waits_;
  std::set<int> waiting_;  ///< for a missing rank
  std::set<int> culprits_;
  bool unsure_ = false;   ///< a group's members or their calls are not all known
  bool circle_ = false;   ///< all wait for each other
  double longest_s_ = 0;  ///< of all waits, including those that do not count yet
};

const FlightView::Group* Judge::group_of(const RankFacts& rank, const std::string& name) {
  if (!rank.flight) return nullptr;
  const auto& groups = rank.flight->groups;
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const FlightView::Group& each) { return each.name == name; });
  return found == groups.end() ? nullptr : &*found;
}

bool Judge::has_called_init(const RankFacts& rank) {
  return rank.flight && (rank.flight->phase != FlightPhase::none || !rank.flight->groups.empty());
}

/// Members of the group that have not called it.
std::vector<int> Judge::missing_in(const RankFacts& rank, const FlightView::Call& call) {
  std::vector<int> missing;
  const FlightView::Group* const own = group_of(rank, call.group);
  if (own == nullptr) return missing;
  if (own->members.empty()) unsure_ = true;
  if (call.transfer) {
    if (call.peer >= 0 && call.peer < static_cast<int>(own->members.size()))
      missing.push_back(own->members[static_cast<std::size_t>(call.peer)]);
    return missing;
  }
  for (const int member : own->members) {
    const RankFacts* const other = find(member);
    if (other != nullptr && other->flight_source == FlightSource::torch_unread &&
        place_of_process(*other) != Place::exited) {
      unsure_ = true;
      continue;
    }
    const FlightView::Group* const theirs = other == nullptr ? nullptr : group_of(*other, call.group);
    if (theirs == nullptr || theirs->last_queued < call.sequence) missing.push_back(member);
  }
  if (own->members.empty()) {
    for (const RankFacts& other : job_.ranks) {
      const FlightView::Group* const theirs = group_of(other, call.group);
      if (theirs != nullptr && theirs->last_queued < call.sequence) missing.push_back(other.rank);
    }
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

void Judge::find_waits() {
  std::map<std::pair<std::string, std::vector<int>>, Wait> waits;
  const auto add = [&](int rank, const std::string& operation, std::vector<int> missing, double age_s) {
    longest_s_ = std::max(longest_s_, age_s);
    if (age_s < after_s_) return;
    if (!missing.empty()) waiting_.insert(rank);
    Wait& wait = waits[{operation, missing}];
    wait.operation = operation;
    wait.missing = std::move(missing);
    wait.waiting.push_back(rank);
    wait.age_s = std::max(wait.age_s, age_s);
  };
  std::vector<int> without_init;
  for (int rank = 0; rank < world_; ++rank) {
    const RankFacts* const facts = find(rank);
    if (facts == nullptr || !has_called_init(*facts)) without_init.push_back(rank);
  }
  for (const RankFacts& rank : job_.ranks) {
    if (!rank.flight || place_of_process(rank) == Place::exited) continue;
    if (rank.flight->phase == FlightPhase::wiring_up) add(rank.rank, "World::init", without_init, rank.flight->phase_s);
    // Later calls wait for the first.
    if (!rank.flight->unfinished.empty()) {
      const FlightView::Call& call = rank.flight->unfinished.front();
      add(rank.rank, describe(call), missing_in(rank, call), call.age_s);
    }
  }
  for (auto& [key, wait] : waits) waits_.push_back(std::move(wait));
  std::sort(waits_.begin(), waits_.end(), [](const Wait& a, const Wait& b) { return a.age_s > b.age_s; });
}

/// Ranks that others wait for and that wait for no rank. If all wait for each other, those that most ranks wait for.
void Judge::find_culprits() {
  std::map<int, std::set<int>> awaited;
  for (const Wait& wait : waits_) {
    for (const int rank : wait.missing) {
      awaited[rank].insert(wait.waiting.begin(), wait.waiting.end());
      if (!waiting_.contains(rank)) culprits_.insert(rank);
    }
  }
  for (const RankFacts& rank : job_.ranks) {
    if (place_of_process(rank) == Place::stopped) culprits_.insert(rank.rank);
  }
  if (!culprits_.empty() || awaited.empty()) return;
  circle_ = true;
  std::size_t most = 0;
  for (const auto& [rank, waiting] : awaited) most = std::max(most, waiting.size());
  for (const auto& [rank, waiting] : awaited) {
    if (waiting.size() == most) culprits_.insert(rank);
  }
}

/// Ranks whose call with the same number differs, in the first wait that all have called.
std::vector<int> Judge::odd_ones() const {
  std::map<std::pair<std::string, std::uint64_t>, std::map<std::pair<std::string, std::uint64_t>, std::vector<int>>>
      calls;
  for (const RankFacts& rank : job_.ranks) {
    if (!rank.flight || rank.flight->unfinished.empty()) continue;
    const FlightView::Call& call = rank.flight->unfinished.front();
    if (call.transfer || call.age_s < after_s_) continue;
    const bool parts = call.operation.ends_with("_v");  // whose sizes may differ
    calls[{call.group, call.sequence}][{call.operation, parts ? 0 : call.count}].push_back(rank.rank);
  }
  std::vector<int> odd;
  for (const auto& [number, kinds] : calls) {
    if (kinds.size() < 2) continue;
    std::size_t most = 0;
    for (const auto& [kind, ranks] : kinds) most = std::max(most, ranks.size());
    for (const auto& [kind, ranks] : kinds) {
      if (ranks.size() < most || kinds.size() == 2 * most) odd.insert(odd.end(), ranks.begin(), ranks.end());
    }
    if (odd.empty()) {  // a tie
      for (const auto& [kind, ranks] : kinds) odd.insert(odd.end(), ranks.begin(), ranks.end());
    }
  }
  std::sort(odd.begin(), odd.end());
  return odd;
}

HangVerdict Judge::none_missing() {
  HangVerdict verdict{.answer = HangAnswer::hangs, .culprits = odd_ones(), .waits = waits_};
  const Wait& wait = waits_.front();
  if (!verdict.culprits.empty()) {
    verdict.text = fmt::format("{} called something else than the others: {}", format_ranks(verdict.culprits),
                               describe_culprits(job_, verdict.culprits));
    return verdict;
  }
  for (const RankFacts& rank : job_.ranks) {
    if (place_of_process(rank) == Place::in_io) verdict.culprits.push_back(rank.rank);
  }
  verdict.text = fmt::format(
      "all ranks of {} have called it, and none ends it for {}: {}", wait.operation, duration(wait.age_s),
      verdict.culprits.empty() ? "a slow operation, or the network" : describe_culprits(job_, verdict.culprits));
  return verdict;
}

HangVerdict Judge::verdict() {
  find_waits();
  find_culprits();
  const bool groups = std::any_of(job_.ranks.begin(), job_.ranks.end(), [](const RankFacts& rank) {
    return rank.flight && (!rank.flight->groups.empty() || rank.flight->phase == FlightPhase::wiring_up);
  });
  if (waits_.empty() && culprits_.empty() && !groups) return judge_processes(job_);
  // PyTorch's recorder does not see everything that ranks may wait in.
  const bool torch = std::any_of(job_.ranks.begin(), job_.ranks.end(),
                                 [](const RankFacts& rank) { return rank.flight_source != FlightSource::libddp; });
  if (culprits_.empty() && (unsure_ || (torch && waits_.empty()))) {
    HangVerdict likely = judge_processes(job_);
    likely.waits = waits_;
    return likely;
  }
  if (culprits_.empty() && !waits_.empty()) return none_missing();
  HangVerdict verdict{.answer = HangAnswer::hangs, .culprits = {culprits_.begin(), culprits_.end()}, .waits = waits_};
  if (culprits_.empty()) {
    verdict.answer = HangAnswer::nothing_hangs;
    verdict.text = longest_s_ > 0 ? fmt::format("nothing hangs: the longest wait is {}", duration(longest_s_))
                                  : "nothing hangs: no rank waits for another one";
    return verdict;
  }
  verdict.text = describe_culprits(job_, verdict.culprits);
  const auto for_them = std::find_if(waits_.begin(), waits_.end(), [&](const Wait& wait) {
    return std::any_of(wait.missing.begin(), wait.missing.end(), [&](int rank) { return culprits_.contains(rank); });
  });
  if (for_them != waits_.end()) {
    verdict.text += fmt::format("; {} {} for {} in {}, for {}", format_ranks(for_them->waiting),
                                for_them->waiting.size() == 1 ? "waits" : "wait", culprits_.size() == 1 ? "it" : "them",
                                for_them->operation, duration(for_them->age_s));
  }
  if (circle_) verdict.text += ": they wait for each other";
  return verdict;
}

void add_trouble(JobObservation& job, NcclTrouble trouble) {
  const auto same = [&](const NcclTrouble& each) { return each.text == trouble.text; };
  if (std::none_of(job.nccl.begin(), job.nccl.end(), same)) job.nccl.push_back(std::move(trouble));
}

}  // namespace

int JobObservation::world_size() const {
  int size = 0;
  for (const RankFacts& rank : ranks) {
    size = std::max({size, rank.world_size, rank.rank + 1, rank.flight ? rank.flight->world_size : 0});
  }
  return std::min(size, 1 << 20);  // bounds what a process claims
}

JobObservation join_hosts(std::vector<HostFacts> hosts, bool complete) {
  JobObservation job;
  job.whole = complete;
  for (HostFacts& host : hosts) {
    for (RankFacts& rank : host.ranks) job.ranks.push_back(std::move(rank));
    for (StackGroup& group : host.stacks.groups) job.stacks.add(std::move(group), kMaxJobStackBytes);
    for (const StackNote& note : host.stacks.notes) job.stacks.note(host.host, note.text);
    for (NcclTrouble& trouble : host.nccl) add_trouble(job, std::move(trouble));  // all hosts have the same troubles
    for (const std::string& note : host.notes) job.notes.push_back(fmt::format("{}: {}", host.host, note));
  }
  std::stable_sort(job.ranks.begin(), job.ranks.end(),
                   [](const RankFacts& a, const RankFacts& b) { return a.rank < b.rank; });
  const auto same = [](const RankFacts& a, const RankFacts& b) { return a.rank == b.rank; };
  const auto doubled = std::unique(job.ranks.begin(), job.ranks.end(), same);
  if (doubled != job.ranks.end())
    job.notes.push_back(
        fmt::format("{} of other processes left out, which are the same ranks as others", job.ranks.end() - doubled));
  job.ranks.erase(doubled, job.ranks.end());
  return job;
}

std::string describe_culprits(const JobObservation& job, const std::vector<int>& culprits) {
  std::map<std::string, std::vector<int>> by_text;
  for (const int culprit : culprits) {
    const auto facts =
        std::find_if(job.ranks.begin(), job.ranks.end(), [&](const RankFacts& each) { return each.rank == culprit; });
    std::string text;
    if (facts == job.ranks.end()) {
      text = job.whole ? "no process any more: ended, or not started" : "not on the hosts that were asked";
    } else {
      const Whereabouts where = whereabouts(*facts);
      text = where.text + (where.last.empty() ? "" : ", " + where.last);
    }
    by_text[text].push_back(culprit);
  }
  std::string all;
  for (const auto& [text, ranks] : by_text) {
    const bool gone = text.starts_with("no process");
    all += fmt::format("{}{} {} {}", all.empty() ? "" : "; ", format_ranks(ranks),
                       ranks.size() == 1 ? (gone ? "has" : "is") : (gone ? "have" : "are"), text);
  }
  return all;
}

HangVerdict judge_hang(const JobObservation& job, double after_s) {
  HangVerdict verdict = Judge{job, after_s}.verdict();
  if (verdict.waits.empty()) judge_by_nccl(job, verdict);
  return verdict;
}

// Finds who hangs without a flight recorder: separates processes that wait for others from those that do not.

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
    verdict.text = "nothing hangs, as far as processes show: some change between two looks";
    return verdict;
  }
  if (!ended.empty() && alive > 0 && waiting.size() == alive) return accuse(std::move(ended), true);
  // The waiting ranks are not the cause.
  if (!waiting.empty() && waiting.size() < alive) {
    std::vector<int> others;
    for (const Place place : {Place::in_io, Place::asleep, Place::computing, Place::starting, Place::unknown})
      others.insert(others.end(), places[place].begin(), places[place].end());
    std::sort(others.begin(), others.end());
    const std::vector<int>& computing = places[Place::computing];
    // Computing ranks may be waiting in a loop, as NCCL's do.
    if (others.size() <= waiting.size() || computing.empty()) return accuse(std::move(others), true);
  }
  if (places[Place::computing].size() == alive && alive > 0) {
    verdict.answer = HangAnswer::nothing_hangs;
    verdict.text = alive == 1 ? "nothing hangs, as far as processes show: it computes"
                              : "nothing hangs, as far as processes show: all compute, or wait in a loop";
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

// Finds who hangs from NCCL's RAS without a flight recorder: NCCL's ranks wait in loops, and look busy.

std::vector<int> ranks_behind(const JobObservation& job, const NcclTrouble& trouble) {
  std::set<int> ranks;
  for (const pid_t pid : trouble.behind) {
    const auto is_it = [pid](const RankFacts& rank) { return rank.pid == pid; };
    // Processes of different hosts may have the same number.
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
