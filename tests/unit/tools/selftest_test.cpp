#include "selftest/verdict.hpp"
#include "support/message_check.hpp"
#include "support/topology_samples.hpp"

namespace ddp::selftest {
namespace {

TEST(SelftestRankResult, IsAMessageWhoseLongTextsAreCut) {
  tests::check_message<RankResult>();
  RankResult result;
  result.findings.resize(1);
  result.findings[0].what = std::string(10 * kLongestText, 'x');
  EXPECT_EQ(base::decode<RankResult>(base::encode(result)).findings[0].what, std::string(kLongestText, 'x'));
}

RankResult result_of(int rank, std::vector<Finding> findings = {}, const char* cpus = "0-3") {
  return {.rank = rank,
          .host = "n" + std::to_string(rank / 2),
          .cpus = CpuSet::parse(cpus),
          .findings = std::move(findings)};
}

/// Nodes n0, n1, ... with two ranks each, all well.
std::vector<TestedNode> healthy(int num_nodes) {
  std::vector<TestedNode> nodes;
  for (int node = 0; node < num_nodes; ++node) {
    nodes.push_back({.host = "n" + std::to_string(node),
                     .ranks = {2 * node, 2 * node + 1},
                     .results = {result_of(2 * node), result_of(2 * node + 1)}});
  }
  return nodes;
}

void add(std::vector<TestedNode>& nodes, int rank, Finding finding) {
  nodes[static_cast<std::size_t>(rank) / 2].results[static_cast<std::size_t>(rank) % 2]->findings.push_back(
      std::move(finding));
}

Finding failure(std::vector<int> blamed, const char* what = "broken") {
  return {.severity = Severity::failure, .check = "pairs", .what = what, .blamed = std::move(blamed)};
}

std::vector<Verdict> verdicts_of(const std::vector<TestedNode>& nodes) {
  std::vector<Verdict> verdicts;
  for (const NodeVerdict& node : judge(nodes)) verdicts.push_back(node.verdict);
  return verdicts;
}

constexpr auto kPass = Verdict::pass;
constexpr auto kFail = Verdict::fail;
constexpr auto kUnknown = Verdict::unknown;
constexpr auto kWarning = Verdict::warning;

TEST(SelftestVerdict, HealthyNodesPass) { EXPECT_EQ(verdicts_of(healthy(3)), (std::vector{kPass, kPass, kPass})); }

TEST(SelftestVerdict, ARankThatBlamesItselfFailsItsNodeOnly) {
  auto nodes = healthy(3);
  add(nodes, 3, failure({3}));
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kPass, kFail, kPass}));
}

TEST(SelftestVerdict, NodesThatWaitedForAnotherNeitherPassNorFail) {
  auto nodes = healthy(3);
  for (const int rank : {0, 1, 4, 5}) add(nodes, rank, failure({2, 3}, "timed out"));
  nodes[1].results = {std::nullopt, std::nullopt};
  const auto verdicts = judge(nodes);
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kUnknown, kFail, kUnknown}));
  EXPECT_EQ(verdicts[1].reason, "n0 says: pairs: rank 0: timed out");
}

TEST(SelftestVerdict, ANodeThatMissesMostOthersIsCutOffItself) {
  auto nodes = healthy(4);
  add(nodes, 6, failure({0, 1, 2, 3, 4, 5}));
  for (const int rank : {0, 2, 4}) add(nodes, rank, failure({6, 7}));
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kUnknown, kUnknown, kUnknown, kFail}));
}

TEST(SelftestVerdict, OfTwoNodesThatBlameEachOtherBothFail) {
  auto nodes = healthy(2);
  add(nodes, 0, failure({2, 3}));
  add(nodes, 2, failure({0, 1}));
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kFail, kFail}));
}

TEST(SelftestVerdict, WhatANodeSaysOfItselfIsTheReason) {
  auto nodes = healthy(3);
  add(nodes, 0, failure({2}, "no answer"));
  add(nodes, 2, failure({2}, "out of memory"));
  EXPECT_EQ(judge(nodes)[1].reason, "pairs: rank 2: out of memory");
}

TEST(SelftestVerdict, AMissingResultIsNoPass) {
  auto nodes = healthy(2);
  nodes[1].results[1].reset();
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kPass, kUnknown}));
}

TEST(SelftestVerdict, RanksThatShareAProcessorAreAWarning) {
  auto nodes = healthy(2);
  nodes[1].results = {result_of(2, {}, "5"), result_of(3, {}, "5")};
  const auto verdicts = judge(nodes);
  EXPECT_EQ(verdicts[1].verdict, kWarning);
  EXPECT_EQ(verdicts[1].reason, "binding: its 2 ranks share 1 processor (5)");
}

TEST(SelftestVerdict, FewerProcessorsThanOnMostNodesAreAWarning) {
  auto nodes = healthy(4);
  nodes[2].results = {result_of(4, {}, "0"), result_of(5, {}, "1")};
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kPass, kPass, kWarning, kPass}));
  // Each rank has one of the same four processors that others have together.
  nodes[2].results = {result_of(4, {}, "0-1"), result_of(5, {}, "2-3")};
  EXPECT_EQ(verdicts_of(nodes), (std::vector{kPass, kPass, kPass, kPass}));
}

TEST(SelftestVerdict, AFailureIsNotHiddenByAWarning) {
  auto nodes = healthy(2);
  add(nodes, 0, {.severity = Severity::warning, .check = "binding", .what = "narrow", .blamed = {0}});
  EXPECT_EQ(verdicts_of(nodes)[0], kWarning);
  add(nodes, 0, failure({0}));
  EXPECT_EQ(judge(nodes)[0].verdict, kFail);
  EXPECT_THAT(judge(nodes)[0].reason, HasSubstr("broken"));
}

TEST(SelftestVerdict, TheTableHasOneLineForEachNode) {
  auto nodes = healthy(2);
  add(nodes, 2, failure({2}, "two\nlines"));
  EXPECT_EQ(format_table(judge(nodes)),
            "NODE  RESULT  RANKS  REASON\n"
            "n0    PASS    0, 1\n"
            "n1    FAIL    2, 3   pairs: rank 2: two lines\n");
}

}  // namespace

}  // namespace ddp::selftest
