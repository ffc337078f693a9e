#include "flight/analysis.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "flight/stall.hpp"

namespace ddp::tools::flight {

std::vector<GroupCalls> join_groups(const std::vector<RankDump>& dumps) {
  std::set<int> dumped;
  for (const RankDump& dump : dumps) dumped.insert(dump.rank);
  std::map<std::string, GroupCalls, std::less<>> groups;
  for (const RankDump& dump : dumps) {
    for (const RankDump::Group& group : dump.groups) {
      GroupCalls& joined = groups[group.name];
      if (!joined.members.empty()) continue;
      joined.name = group.name;
      for (const int rank : group.ranks) {
        joined.members.push_back({.rank = rank, .has_dump = dumped.contains(rank), .last_queued = 0});
      }
    }
  }
  for (const RankDump& dump : dumps) {
    std::vector<GroupCalls*> joined;
    std::vector<GroupCalls::Member*> own;
    for (const RankDump::Group& group : dump.groups) {
      joined.push_back(&groups[group.name]);
      auto& members = joined.back()->members;
      const auto place =
          std::find_if(members.begin(), members.end(), [&](const auto& each) { return each.rank == dump.rank; });
      own.push_back(place == members.end() ? nullptr : &*place);
      if (own.back() != nullptr) own.back()->last_queued = group.last_queued;
    }
    for (const Call& call : dump.calls) {
      GroupCalls::Member* member = own[call.group];
      if (member == nullptr) continue;
      if (call.is_transfer()) {
        member->transfers.push_back(&call);
      } else {
        member->collectives[call.sequence] = &call;
        member->last_queued = std::max(member->last_queued, call.sequence);
        joined[call.group]->sequences.insert(call.sequence);
      }
    }
  }
  std::vector<GroupCalls> list;
  list.reserve(groups.size());
  for (auto& [name, group] : groups) list.push_back(std::move(group));
  return list;
}

namespace {

// A rank is slow if it came last in half of at least this many operations, and cost this much each time...
constexpr std::uint64_t kLeastOperations = 5;
constexpr double kLeastSeconds = 1e-3;
// ... or if the others once waited this long.
constexpr double kLongSeconds = 0.1;

/// Whether no rank leaves it before all have come.
bool synchronizes(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::all_gather ||
         kind == OperationKind::all_gather_v || kind == OperationKind::reduce_scatter ||
         kind == OperationKind::all_to_all || kind == OperationKind::barrier;
}

double seconds_in(const Call& call) {
  const std::int64_t begin = call.started_ns != 0 ? call.started_ns : call.queued_ns;
  return static_cast<double>(call.finished_ns - begin) / 1e9;
}

}  // namespace

std::vector<Straggler> find_stragglers(const std::vector<GroupCalls>& groups) {
  std::map<int, Straggler> ranks;
  for (const GroupCalls& group : groups) {
    if (group.members.size() < 2) continue;
    for (const std::uint64_t sequence : group.sequences) {
      std::vector<std::pair<double, int>> stays;
      const Call* call = nullptr;
      for (const GroupCalls::Member& member : group.members) {
        call = member.at(sequence);
        if (call == nullptr || call->state != CallState::done || !synchronizes(call->kind)) break;
        stays.emplace_back(seconds_in(*call), member.rank);
      }
      if (stays.size() != group.members.size()) continue;
      std::sort(stays.begin(), stays.end());
      const double waited = stays[stays.size() / 2].first - stays.front().first;
      for (const auto& [stay, rank] : stays) ++ranks[rank].of;
      Straggler& last = ranks[stays.front().second];
      last.rank = stays.front().second;
      ++last.last;
      last.seconds += waited;
      if (waited > last.longest) {
        last.longest = waited;
        last.longest_at = call->description();
      }
    }
  }
  std::vector<Straggler> found;
  for (const auto& [rank, each] : ranks) {
    const bool often = each.of >= kLeastOperations && each.last * 2 >= each.of &&
                       each.seconds >= kLeastSeconds * static_cast<double>(each.last);
    if (often || each.longest >= kLongSeconds) found.push_back(each);
  }
  std::sort(found.begin(), found.end(), [](const Straggler& a, const Straggler& b) { return a.seconds > b.seconds; });
  return found;
}

namespace {

using Ranks = std::vector<int>;

bool contains(const Ranks& sorted, int rank) { return std::binary_search(sorted.begin(), sorted.end(), rank); }

Ranks common(const Ranks& a, const Ranks& b) {
  Ranks both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

/// Each rank's unfinished calls, as (group, sequence); sequence 0 for transfers.
using Pending = std::map<int, std::set<std::pair<std::string, std::uint64_t>>>;

Pending find_pending(const std::vector<GroupCalls>& groups) {
  Pending pending;
  for (const GroupCalls& group : groups) {
    for (const GroupCalls::Member& member : group.members) {
      for (const auto& [sequence, call] : member.collectives) {
        if (call->unfinished()) pending[member.rank].emplace(group.name, sequence);
      }
      for (const Call* call : member.transfers) {
        if (call->unfinished()) pending[member.rank].emplace(group.name, 0);
      }
    }
  }
  return pending;
}

/// The ranks absent from a stall that nothing else holds up.
Ranks free_ranks(const Stall& stall, const Pending& pending) {
  Ranks free;
  for (const int rank : stall.absent) {
    const auto found = pending.find(rank);
    const bool held_up =
        found != pending.end() && std::any_of(found->second.begin(), found->second.end(), [&](const auto& call) {
          return call.first != stall.group || call.second < std::max<std::uint64_t>(stall.sequence, 1);
        });
    if (!held_up) free.push_back(rank);
  }
  return free;
}

/// The other stall that holds up @p rank; null if there is none.
const Stall* held_up_in(const std::vector<Stall>& stalls, const Stall& stall, int rank) {
  const auto found = std::find_if(stalls.begin(), stalls.end(),
                                  [&](const Stall& each) { return &each != &stall && contains(each.waiting, rank); });
  return found == stalls.end() ? nullptr : &*found;
}

/// Judges a stall that only its members explain: the smaller side is wrong.
Finding blame(const std::vector<Stall>& stalls, const Stall& stall) {
  const bool absent_are_wrong = stall.absent.size() <= stall.callers.size();
  const Ranks& wrong = absent_are_wrong ? stall.absent : stall.callers;
  Finding finding{.kind = absent_are_wrong ? Divergence::missing_call : Divergence::extra_call,
                  .group = stall.group,
                  .culprits = wrong,
                  .others = absent_are_wrong ? stall.callers : stall.absent,
                  .sure = stall.absent.size() != stall.callers.size(),
                  .theirs = absent_are_wrong ? "" : stall.operation,
                  .expected = absent_are_wrong ? stall.operation : ""};
  if (wrong.empty()) return finding;
  if (const Stall* elsewhere = absent_are_wrong ? held_up_in(stalls, stall, wrong.front()) : nullptr) {
    finding.kind = Divergence::other_order;
    finding.theirs = elsewhere->operation;
  }
  return finding;
}

Finding blame_unknown(const Stall& stall, Ranks unknown) {
  return {.kind = Divergence::no_dump,
          .group = stall.group,
          .culprits = std::move(unknown),
          .others = stall.callers,
          .sure = true,
          .theirs = "",
          .expected = stall.operation};
}

/// Whether all stalls would have ended if the culprits of @p stall had acted as the others.
bool explains_all(const std::vector<Stall>& stalls, const Stall& stall, const Finding& finding) {
  std::set<int> free(finding.culprits.begin(), finding.culprits.end());
  free.insert(stall.waiting.begin(), stall.waiting.end());
  std::set<const Stall*> open{&stall};
  for (std::size_t before = 0; before != open.size();) {
    before = open.size();
    for (const Stall& each : stalls) {
      const bool opens =
          std::all_of(each.absent.begin(), each.absent.end(), [&](int rank) { return free.contains(rank); });
      if (!opens || !open.insert(&each).second) continue;
      free.insert(each.waiting.begin(), each.waiting.end());
    }
  }
  return open.size() == stalls.size();
}

/// Keeps the findings with the fewest culprits, the earliest first.
void keep_smallest(std::vector<Finding>& findings) {
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const Finding& finding : findings) fewest = std::min(fewest, finding.culprits.size());
  std::erase_if(findings, [&](const Finding& finding) { return finding.culprits.size() != fewest; });
}

/// The first cause: a stall that no other explains. @p stalls the earliest first.
std::optional<Finding> find_first(const std::vector<Stall>& stalls, const Pending& pending, const Ranks& lost) {
  for (const Stall& stall : stalls) {
    if (stall.mismatch) return stall.mismatch;
  }
  for (const Stall& stall : stalls) {
    if (Ranks gone = common(stall.unknown, lost); !gone.empty()) return blame_unknown(stall, std::move(gone));
  }
  std::vector<Finding> findings;
  for (const Stall& stall : stalls) {
    if (!free_ranks(stall, pending).empty()) findings.push_back(blame(stalls, stall));
  }
  keep_smallest(findings);
  if (!findings.empty()) return findings.front();
  for (const Stall& stall : stalls) {
    if (!stall.unknown.empty()) return blame_unknown(stall, stall.unknown);
  }
  // Ranks wait for each other in a circle: find the smallest change that opens it.
  for (const bool wholly : {true, false}) {
    for (const Stall& stall : stalls) {
      const bool in_circle = std::any_of(stall.absent.begin(), stall.absent.end(),
                                         [&](int rank) { return held_up_in(stalls, stall, rank) != nullptr; });
      if (!in_circle) continue;
      Finding finding = blame(stalls, stall);
      if (!wholly || explains_all(stalls, stall, finding)) findings.push_back(std::move(finding));
    }
    if (!findings.empty()) break;
  }
  keep_smallest(findings);
  if (findings.empty()) return std::nullopt;
  // A rank whose first call differs says more than one with an extra call.
  const auto best = std::find_if(findings.begin(), findings.end(),
                                 [](const Finding& each) { return each.kind != Divergence::extra_call; });
  Finding first = best == findings.end() ? findings.front() : *best;
  Ranks all;
  for (const Finding& finding : findings) {
    Ranks joined;
    std::set_union(all.begin(), all.end(), finding.culprits.begin(), finding.culprits.end(),
                   std::back_inserter(joined));
    all = std::move(joined);
  }
  if (all != first.culprits) {
    first.sure = false;
    first.culprits = std::move(all);
    for (const int rank : first.culprits) std::erase(first.others, rank);
  }
  return first;
}

std::vector<Wait> find_waits(const std::vector<GroupCalls>& groups, const std::map<int, const RankDump*>& dumps) {
  std::vector<Wait> waits;
  const auto add = [&](const GroupCalls& group, const GroupCalls::Member& member, const Call& call, Ranks missing) {
    const std::string operation = call.description();
    const double seconds = static_cast<double>(dumps.at(member.rank)->written_ns - call.queued_ns) / 1e9;
    const auto found = std::find_if(waits.begin(), waits.end(), [&](const Wait& each) {
      return each.group == group.name && each.operation == operation && each.missing == missing;
    });
    if (found == waits.end()) {
      waits.push_back({group.name, {member.rank}, operation, std::move(missing), std::max(seconds, 0.0)});
    } else {
      found->ranks.push_back(member.rank);
      found->seconds = std::max(found->seconds, seconds);
    }
  };
  for (const GroupCalls& group : groups) {
    for (const GroupCalls::Member& member : group.members) {
      for (const auto& [sequence, call] : member.collectives) {
        if (!call->unfinished()) continue;
        Ranks missing;
        for (const GroupCalls::Member& other : group.members) {
          if (other.lacks(sequence) || !other.has_dump) missing.push_back(other.rank);
        }
        std::sort(missing.begin(), missing.end());
        add(group, member, *call, std::move(missing));
        break;
      }
    }
    for (const Stall& stall : find_stalls(group)) {
      if (stall.sequence != 0 || stall.mismatch) continue;
      waits.push_back(
          {group.name, stall.waiting, stall.operation, stall.absent.empty() ? stall.unknown : stall.absent,
           std::max(0.0, static_cast<double>(dumps.at(stall.waiting.front())->written_ns - stall.since_ns) / 1e9)});
    }
  }
  for (Wait& wait : waits) std::sort(wait.ranks.begin(), wait.ranks.end());
  return waits;
}

}  // namespace

std::string_view to_string(Divergence kind) noexcept {
  switch (kind) {
    case Divergence::missing_call: return "missing_call";
    case Divergence::extra_call: return "extra_call";
    case Divergence::other_operation: return "other_operation";
    case Divergence::other_size: return "other_size";
    case Divergence::other_dtype: return "other_dtype";
    case Divergence::other_reduction: return "other_reduction";
    case Divergence::other_root: return "other_root";
    case Divergence::other_parts: return "other_parts";
    case Divergence::other_order: return "other_order";
    case Divergence::no_dump: return "no_dump";
  }
  return "unknown";
}

Analysis analyse(const std::vector<RankDump>& dumps) {
  Analysis analysis;
  const std::vector<GroupCalls> groups = join_groups(dumps);
  std::map<int, const RankDump*> by_rank;
  std::set<int> all;
  std::set<int> lost;
  for (const RankDump& dump : dumps) {
    by_rank[dump.rank] = &dump;
    all.insert(dump.rank);
    lost.insert(dump.lost.begin(), dump.lost.end());
  }
  for (const GroupCalls& group : groups) {
    for (const GroupCalls::Member& member : group.members) all.insert(member.rank);
  }
  analysis.ranks.assign(all.begin(), all.end());
  for (const int rank : analysis.ranks) {
    if (!by_rank.contains(rank)) analysis.without_dump.push_back(rank);
  }
  std::vector<Stall> stalls;
  for (const GroupCalls& group : groups) {
    for (Stall& stall : find_stalls(group)) stalls.push_back(std::move(stall));
  }
  std::stable_sort(stalls.begin(), stalls.end(),
                   [](const Stall& a, const Stall& b) { return a.since_ns < b.since_ns; });
  analysis.first = find_first(stalls, find_pending(groups), Ranks(lost.begin(), lost.end()));
  for (const Stall& stall : stalls) {
    if (stall.mismatch && (stall.group != analysis.first->group || stall.mismatch->theirs != analysis.first->theirs)) {
      analysis.further.push_back(*stall.mismatch);
    }
  }
  analysis.waits = find_waits(groups, by_rank);
  analysis.stragglers = find_stragglers(groups);
  return analysis;
}

}  // namespace ddp::tools::flight
