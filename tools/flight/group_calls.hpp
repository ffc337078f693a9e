// The calls of all ranks in one group, side by side.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "flight/rank_dump.hpp"

namespace ddp::tools::flight {

/// Points into dumps, which must outlive it.
struct GroupCalls {
  struct Member {
    int rank = 0;  ///< in the world
    bool has_dump = false;
    std::uint64_t last_queued = 0;                       ///< 0 where its dump does not know the group
    std::map<std::uint64_t, const Call*> collectives{};  ///< by sequence; old ones may have been overwritten
    std::vector<const Call*> transfers{};                ///< in order

    /// Nothing if it has no record of it.
    const Call* at(std::uint64_t sequence) const {
      const auto found = collectives.find(sequence);
      return found == collectives.end() ? nullptr : found->second;
    }
    /// Whether it is known not to have called it.
    bool lacks(std::uint64_t sequence) const { return has_dump && last_queued < sequence; }
  };

  std::string name;
  std::vector<Member> members;        ///< by rank in the group
  std::set<std::uint64_t> sequences;  ///< of which there is any record
};

/// Of each group that any dump knows. Where two dumps name different members, those of the lower rank count.
std::vector<GroupCalls> join_groups(const std::vector<RankDump>& dumps);

}  // namespace ddp::tools::flight
