// Groups of real processes: every collective, sub-groups, order of asynchronous work, refused calls.
#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

struct Job {
  const char* scenario;
  int size;
  Over over = kSharedMemory;
};
void PrintTo(const Job& job, std::ostream* out) { *out << job.scenario; }

class Scenario : public testing::TestWithParam<Job> {};

TEST_P(Scenario, HoldsOnEveryRank) {
  const auto& [name, world_size, over] = GetParam();
  RankProcesses ranks(world_size, {built_program("rank_program"), name}, {}, over.memory_domains);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(400)));
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.ended);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.signal, 0);
    EXPECT_NE(result.output.find("DONE"), std::string::npos);
  }
}

// The backends' own tests (tests/unit/collectives) have other sizes; refused calls and the store know no backend.
INSTANTIATE_TEST_SUITE_P(
    Collectives, Scenario,
    testing::Values(Job{"collectives", 1}, Job{"collectives", 3}, Job{"collectives", 4, kTwoNodes},
                    Job{"collectives", 4, kTcp},                                                               //
                    Job{"subgroups", 1}, Job{"subgroups", 2}, Job{"subgroups", 4}, Job{"subgroups", 3, kTcp},  //
                    Job{"subgroups", 4, kTwoNodes},                                                            //
                    Job{"ordering", 1}, Job{"ordering", 2}, Job{"ordering", 4}, Job{"ordering", 3, kTcp},      //
                    Job{"ordering", 4, kTwoNodes},                                                             //
                    Job{"misuse", 1}, Job{"misuse", 3}, Job{"kvs", 1}, Job{"kvs", 4}),
    [](const auto& each) {
      return std::string(each.param.scenario) + "_" + std::to_string(each.param.size) + "_" + each.param.over.name;
    });

RankResult run_with_backend(const std::string& name) {
  RankProcesses ranks(1, {built_program("rank_program"), "ordering"},
                      {"DDP_BACKEND=" + name, "DDP_BACKEND_PATH=/nonexistent"});
  return ranks.wait(Deadline::after(std::chrono::seconds(30)))[0];
}

TEST(Backend, ThatOfCpusHasThreeNamesAndNeedsNoPlugin) {
  for (const char* name : {"host", "cpu", "gloo"}) {
    const RankResult result = run_with_backend(name);
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.output;
  }
}

/// Several groups, for which no shared memory is left: what holds for all of them is said once a process.
TEST(Backend, ThatHasNoSharedMemoryLeftSaysSoOnce) {
  const std::string said =
      "does not share memory with rank 0 of its node, but uses TCP: rank 0 has 0 KiB of DDP_SHM_MIB";
  RankProcesses ranks(3, {built_program("rank_program"), "subgroups"}, {"DDP_SHM_MIB=0"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(100)));
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    const auto first = results[rank].output.find(said);
    ASSERT_NE(first, std::string::npos) << results[rank].output;
    EXPECT_EQ(results[rank].output.find("does not share memory", first + said.size()), std::string::npos)
        << results[rank].output;
  }
}

TEST(Backend, TheEnvironmentNamesTheOneOfProgramsThatNameNone) {
  const RankResult result = run_with_backend("absent");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.output.find("/nonexistent/libddp_absent.so"), std::string::npos) << result.output;
}

TEST(Backend, AWrongNameIsAnsweredWithWhatWasTriedAndWithTheNearestName) {
  const RankResult result = run_with_backend("glo");
  EXPECT_EQ(result.exit_code, 3);
  for (const char* word :
       {"/nonexistent/libddp_glo.so", "; libddp_glo.so", "did you mean 'gloo'?", "host (also called"}) {
    EXPECT_NE(result.output.find(word), std::string::npos) << word << ": " << result.output;
  }
}

}  // namespace
}  // namespace ddp::test
