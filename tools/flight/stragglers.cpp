#include "flight/stragglers.hpp"

#include <algorithm>
#include <map>

namespace ddp::tools::flight {
namespace {

// A rank is slow that came last in half of at least so many operations, and cost so much each time...
constexpr std::uint64_t kLeastOperations = 5;
constexpr double kLeastSeconds = 1e-3;
// ... or that others waited for this long at once.
constexpr double kLongSeconds = 0.1;

/// Nobody leaves it before all have come.
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

}  // namespace ddp::tools::flight
