// Compares the ranks' calls: who did first what the others did not, who waits for whom, and who was slow. No I/O.
//
// What is compared is the order of calls within each group, never the clocks of different hosts. Ranks that did what
// most others did not are held to be the culprits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flight/rank_dump.hpp"

namespace ddp::tools::flight {

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

}  // namespace ddp::tools::flight
