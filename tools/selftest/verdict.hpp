// From what the ranks have found to one line for each node: which of them are at fault, and which only waited for
// those.
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
  unknown,  ///< it could not finish, or be asked, because of others
};

struct TestedNode {
  std::string host;
  std::vector<int> ranks;                          ///< ascending
  std::vector<std::optional<RankResult>> results;  ///< of these ranks; nothing where rank 0 could not get it
};

struct NodeVerdict {
  std::string host;
  std::vector<int> ranks;
  Verdict verdict = Verdict::pass;
  std::string reason;  ///< one line; empty for pass
};

/// A node fails when a finding blames one of its ranks. Where there are three nodes or more, a rank that blames those
/// of more than half of the other nodes is itself at fault: its link is down, not all of theirs.
/// @param nodes by node number.
std::vector<NodeVerdict> judge(const std::vector<TestedNode>& nodes);

/// "NODE  RESULT  RANKS  REASON", a heading and a line for each node. Results: PASS, WARN, FAIL and "----" for unknown.
std::string format_table(const std::vector<NodeVerdict>& verdicts);

}  // namespace ddp::selftest
