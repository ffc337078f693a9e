// Environments of many ranks: the message of each, what differs, the table and the JSON document.
#include <ddp/error.hpp>

#include "diagnostics/environment/environment_dump.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/environment_message.hpp"
#include "kvs/memory_store.hpp"
#include "support/message_check.hpp"

namespace ddp::diagnostics {
namespace {

RankEnvironment rank_with(int rank, std::vector<RankVariable> variables) {
  return {.rank = rank,
          .host = rank < 2 ? "n0" : "n1",
          .nccl = {.path = "/lib/libnccl.so.2", .found = "the loader's", .version = "2.28.9", .names = 187},
          .variables = std::move(variables)};
}

std::vector<std::string> texts(const EnvironmentReport& report) {
  std::vector<std::string> found;
  for (const EnvironmentFinding& finding : report.findings) found.push_back(finding.rule + ": " + finding.text);
  return found;
}

TEST(EnvironmentMessage, SurvivesTheWay) {
  tests::check_message<RankEnvironment>();
  RankEnvironment own = rank_with(2, {{"NCCL_DEBUG", "INFO", "environment", true}, {"RANK", "2", "ddprun", {}}});
  EXPECT_EQ(base::decode<RankEnvironment>(encode(own)), own);
  // Too large: first what does not matter goes, then all.
  own.variables.push_back({"EDITOR", std::string(std::size_t{128} << 10U, 'x'), "environment", {}});
  EXPECT_EQ(base::decode<RankEnvironment>(encode(own)).variables.size(), 2U);
  own.variables.push_back({"NCCL_ALGO", std::string(std::size_t{128} << 10U, 'x'), "environment", {}});
  const RankEnvironment none = base::decode<RankEnvironment>(encode(own));
  EXPECT_THAT(none.variables, IsEmpty());
  EXPECT_THAT(none.findings.at(0).text, HasSubstr("too large"));
}

TEST(EnvironmentFold, EqualRanksAreOneLine) {
  std::vector<RankEnvironment> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(rank_with(rank, {{"NCCL_DEBUG", rank < 2 ? "INFO" : "WARN", "environment", true},
                                     {"RANK", std::to_string(rank), "ddprun", {}},
                                     {"UCX_TLS", "rc", "environment", {}}}));
  }
  const EnvironmentReport report = fold(ranks);
  EXPECT_THAT(report.findings, IsEmpty());
  ASSERT_EQ(report.variables.size(), 3U);
  ASSERT_EQ(report.variables[0].values.size(), 2U);
  EXPECT_THAT(report.variables[0].values[1].ranks, ElementsAre(2, 3));
  EXPECT_EQ(report.variables[2].values.size(), 1U);
  const std::string text = report.to_text();
  EXPECT_THAT(text,
              HasSubstr("4 ranks on 2 hosts: n0 (ranks 0, 1), n1 (ranks 2, 3)\nnothing wrong found\nNCCL: 2.28.9"));
  EXPECT_THAT(text, HasSubstr("\nUCX\n  UCX_TLS  rc                environment\n"));
  const std::string json = report.to_json();
  EXPECT_THAT(
      json,
      HasSubstr(
          R"({"name": "NCCL_DEBUG", "family": "NCCL", "values": [{"value": "INFO", "origin": "environment", "read": true, "ranks": "0-1"}, {"value": "WARN")"));
}

TEST(EnvironmentFold, WhatMustNotDiffer) {
  auto ranks =
      std::vector{rank_with(0, {{"NCCL_ALGO", "Ring", "environment", true}, {"NCCL_IB_HCA", "a", "environment", true}}),
                  rank_with(1, {{"NCCL_ALGO", "Ring", "environment", true}, {"NCCL_IB_HCA", "b", "environment", true}}),
                  rank_with(2, {{"NCCL_ALGO", "Tree", "environment", true}}), rank_with(3, {})};
  EXPECT_THAT(texts(fold(ranks)),
              ElementsAre("env-differs: NCCL_ALGO must be equal on all ranks, but is 'Ring' on ranks "
                          "0, 1, 'Tree' on rank 2, unset on rank 3"));
  // An empty value is as good as none, and the same value from elsewhere is no other.
  ranks = {rank_with(0, {{"NCCL_ALGO", "", "environment", true}, {"NCCL_PROTO", "LL", "environment", true}}),
           rank_with(1, {{"NCCL_PROTO", "LL", "/etc/nccl.conf", true}})};
  EXPECT_THAT(texts(fold(ranks)), IsEmpty());
}

TEST(EnvironmentFold, FilesAndLibraries) {
  auto ranks = std::vector{rank_with(0, {}), rank_with(1, {}), rank_with(2, {})};
  ranks[2].files = {{"/etc/nccl.conf", 1}};
  EXPECT_THAT(
      texts(fold(ranks)),
      ElementsAre(HasSubstr("env-conf: /etc/nccl.conf differs: 0000000000000001 on rank 2, absent on ranks 0, 1")));
  ranks[2].variables = {{"NCCL_ALGO", "Ring", "/etc/nccl.conf", true}};
  EXPECT_THAT(texts(fold(ranks)), ElementsAre(HasSubstr("env-differs: NCCL_ALGO"))) << "one finding for one fault";
  ranks[2] = rank_with(2, {});
  ranks[2].nccl.version = "2.18.3";
  EXPECT_THAT(
      texts(fold(ranks)),
      ElementsAre(
          "env-nccl-version: ranks would load different NCCL versions: 2.18.3 on rank 2, 2.28.9 on ranks 0, 1"));
  ranks[2].nccl.version = "2.28.9";
  ranks[2].nccl.path = "/elsewhere/libnccl.so.2";
  EXPECT_THAT(texts(fold(ranks)), IsEmpty());
}

TEST(EnvironmentFold, ManyValuesAreShortened) {
  std::vector<RankEnvironment> ranks;
  for (int rank = 0; rank < 64; ++rank)
    ranks.push_back(rank_with(rank, {{"RANK", std::to_string(rank), "ddprun", {}}}));
  const EnvironmentReport report = fold(ranks);
  EXPECT_THAT(report.to_text(), HasSubstr("  RANK  0, 1, ...         64 values on 64 ranks: ddprun\n"));
  EXPECT_THAT(report.to_text(), Not(HasSubstr("63,")));
}

TEST(EnvironmentGather, RanksWithoutAnAnswerAreNamed) {
  const auto hub = std::make_shared<kvs::MemoryHub>(3);
  std::vector<std::thread> threads;
  std::optional<EnvironmentReport> report;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      kvs::MemoryStore store{hub, rank};
      if (rank != 1) put_environment(store, "env", rank_with(rank, {{"NCCL_DEBUG", "INFO", "environment", true}}));
      const Deadline deadline = Deadline::after(std::chrono::seconds(60));
      store.fence(deadline);
      if (rank == 0) report = collect_environments(store, "env", deadline);
      store.fence(deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->hosts.size(), 3U);
  ASSERT_EQ(report->findings.size(), 1U);
  EXPECT_THAT(report->findings[0].ranks, ElementsAre(1));
}

}  // namespace
}  // namespace ddp::diagnostics
