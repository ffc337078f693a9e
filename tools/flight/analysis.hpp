// Compares the calls of all ranks of a job: which rank first called something else, who waits for whom, who was slow.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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

// Compares the ranks' calls: who did first what the others did not, who waits for whom, and who was slow. No I/O.
//
// What is compared is the order of calls within each group, never the clocks of different hosts. Ranks that did what
// most others did not are held to be the culprits.

enum class Divergence : std::uint8_t {
  missing_call,  ///< others called it, the culprit did not
  extra_call,    ///< the culprit called it, most others did not
  other_operation,
  other_size,
  other_dtype,
  other_reduction,
  other_root,
  other_parts,  ///< of all_gather_v
  other_order,  ///< the culprit called another one first
  no_dump,      ///< others wait for the culprit, which has left no dump: it ended, or could not write
};
/// "other_size".
std::string_view to_string(Divergence kind) noexcept;

/// One place where ranks differ. Ranks are those of the world, ascending.
struct Finding {
  Divergence kind = Divergence::missing_call;
  std::string group;
  std::vector<int> culprits{};
  std::vector<int> others{};
  bool sure = true;      ///< the culprits are fewer than the others
  std::string theirs{};  ///< what the culprits called; empty: nothing, or unknown
  std::string expected;  ///< what the others called; empty: nothing
};

/// Ranks that wait in the same operation.
struct Wait {
  std::string group;
  std::vector<int> ranks;
  std::string operation;
  std::vector<int> missing;  ///< that have not called it, or may not have; empty: all have
  double seconds = 0;        ///< the longest, until its rank's dump
};

/// A rank that others waited for, by the time that each spent in operations: no clocks are compared.
struct Straggler {
  int rank = 0;
  std::uint64_t last = 0;  ///< how often it came last
  std::uint64_t of = 0;    ///< among so many operations
  double seconds = 0;      ///< that the others waited for it, in all
  double longest = 0;      ///< at once
  std::string longest_at;  ///< the operation
};

struct Analysis {
  std::vector<int> ranks;  ///< all that any group has
  std::vector<int> without_dump;
  std::optional<Finding> first;  ///< where it began
  std::vector<Finding> further;  ///< what probably follows from it
  std::vector<Wait> waits;
  std::vector<Straggler> stragglers;  ///< those that cost the others most first
};

/// @param dumps at most one of each rank.
Analysis analyse(const std::vector<RankDump>& dumps);

// Who came late to operations that all ranks have finished.

/// Clocks of different hosts are not compared: in an operation that nobody leaves before all have come, who comes last
/// is who stays for the shortest time. Ranks that came last often enough, or made the others wait for long enough, to
/// matter; the worst first.
std::vector<Straggler> find_stragglers(const std::vector<GroupCalls>& groups);

}  // namespace ddp::tools::flight
