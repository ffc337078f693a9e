// Groups of real processes: every collective, sub-groups, order of asynchronous work, refused calls.
#include <gtest/gtest.h>

#include "over.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

class Scenario : public testing::TestWithParam<std::tuple<const char*, int, Over>> {};

TEST_P(Scenario, HoldsOnEveryRank) {
  const auto [name, world_size, over] = GetParam();
  RankProcesses ranks(world_size, {RANK_PROGRAM, name}, {over.backend}, over.memory_domains);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(180)));
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.ended);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.signal, 0);
    EXPECT_NE(result.output.find("DONE"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, Scenario,
                         testing::Combine(testing::Values("collectives", "subgroups", "ordering", "misuse", "kvs"),
                                          testing::Values(1, 2, 3, 4),
                                          testing::Values(kGloo, kSharedMemory, kTwoNodes)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param)) + "_" + std::to_string(std::get<1>(each.param)) +
                                  "_" + std::get<2>(each.param).name;
                         });

TEST(Backend, MissingPluginNamesTheFolder) {
  RankProcesses ranks(1, {RANK_PROGRAM, "ordering"}, {"DDP_BACKEND=gloo", "DDP_BACKEND_PATH=/nonexistent"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(30)));
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(results[0].output.find("/nonexistent/libddp_gloo.so"), std::string::npos) << results[0].output;
}

TEST(Backend, TheEnvironmentNamesTheOneOfProgramsThatNameNone) {
  RankProcesses ranks(1, {RANK_PROGRAM, "ordering"}, {"DDP_BACKEND=nccl", "DDP_BACKEND_PATH=/nonexistent"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(30)));
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(results[0].output.find("/nonexistent/libddp_nccl.so"), std::string::npos) << results[0].output;
}

}  // namespace
}  // namespace ddp::test
