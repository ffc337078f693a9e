// From the ranks' findings to one verdict per node: at fault, or only waiting for those that are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddp/cpu_set.hpp>

#include "base/message_fields.hpp"
#include "topology/network/message_values.hpp"

namespace ddp::selftest {

enum class Severity : std::uint8_t { failure, warning };

struct Finding {
  Severity severity = Severity::failure;
  std::string check;          ///< "collectives"
  std::string what;           ///< one line
  std::vector<int> blamed{};  ///< world ranks at fault, as far as this rank can tell; never empty
  friend bool operator==(const Finding&, const Finding&) = default;
};

struct RankResult {
  int rank = 0;
  std::string host;
  CpuSet cpus;  ///< that it may run on
  std::vector<Finding> findings;
  friend bool operator==(const RankResult&, const RankResult&) = default;
};

/// Longer texts are truncated: a fence carries every result to every node.
inline constexpr std::size_t kLongestText = 600;

constexpr auto description(const Finding*) {
  return base::describe({"finding"}, base::fields<&Finding::severity>(base::kUpTo<Severity::warning>),
                        base::fields<&Finding::check, &Finding::blamed>(),
                        base::fields<&Finding::what>(base::Rule{.longest = kLongestText, .cut = true}));
}
constexpr auto description(const RankResult*) {
  return base::describe({"rank's result", 2},
                        base::fields<&RankResult::rank, &RankResult::host, &RankResult::cpus, &RankResult::findings>());
}

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
