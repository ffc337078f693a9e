// From the ranks' findings to one verdict per node: at fault, or only waiting for those that are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "selftest/rank_result.hpp"

namespace ddp::selftest {

enum class Verdict {
  pass,
  warning,
  fail,
  unknown,  ///< could not finish, or be asked, because of others
};

struct TestedNode {
  std::string host{};
  std::vector<int> ranks;                            ///< ascending
  std::vector<std::optional<RankResult>> results{};  ///< of these ranks; nullopt where rank 0 could not get it
};

struct NodeVerdict {
  std::string host;
  std::vector<int> ranks;
  Verdict verdict = Verdict::pass;
  std::string reason{};  ///< one line; empty for pass
};

/// A node fails when a finding blames one of its ranks. With three nodes or more, a rank that blames more than half of
/// the other nodes is itself at fault: its own link is down, not all of theirs.
/// @param nodes by node number.
std::vector<NodeVerdict> judge(const std::vector<TestedNode>& nodes);

/// "NODE  RESULT  RANKS  REASON" and a line per node. Results: PASS, WARN, FAIL, "----" for unknown.
std::string format_table(const std::vector<NodeVerdict>& verdicts);

}  // namespace ddp::selftest
