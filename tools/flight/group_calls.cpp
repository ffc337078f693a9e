#include "flight/group_calls.hpp"

#include <algorithm>

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

}  // namespace ddp::tools::flight
