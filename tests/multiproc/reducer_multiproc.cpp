// The reducer among real processes, and the proof that sharded training equals training on the whole batch.
#include <list>

#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"
#include "support/sanitized.hpp"

namespace ddp::test {
namespace {

/// For one world of a program, also of a sanitized one beside other work.
constexpr std::chrono::seconds kPatience{300};

class Worlds : public testing::TestWithParam<std::tuple<int, Over>> {};

TEST_P(Worlds, ReducerAveragesInRebuiltBuckets) {
  const auto [size, over] = GetParam();
  RankProcesses ranks(size, {built_program("rank_program"), "reducer"}, {}, over.memory_domains);
  for (const RankResult& result : ranks.wait(Deadline::after(kPatience))) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_P(Worlds, EveryModeLearnsWhatOneProcessLearns) {
  const auto [size, over] = GetParam();
  for (const char* scenario : {"training-modes", "reducer-missing", "comm-hooks", "uneven-inputs"}) {
    RankProcesses ranks(size, {built_program("rank_program"), scenario}, {}, over.memory_domains);
    for (const RankResult& result : ranks.wait(Deadline::after(kPatience))) {
      EXPECT_EQ(result.exit_code, 0) << scenario << ": " << result.output;
    }
  }
}

TEST_P(Worlds, ShardedTrainingEqualsTheWholeBatch) {
  const auto [size, over] = GetParam();
  for (const char* dtype : {"float32", "float64"}) {
    RankProcesses ranks(size, {built_program("sharded_training"), "--dtype", dtype}, {}, over.memory_domains);
    const auto results = ranks.wait(Deadline::after(kPatience));
    for (const RankResult& result : results) EXPECT_EQ(result.exit_code, 0) << dtype << ": " << result.output;
    EXPECT_NE(results[0].output.find("sharded training equals the whole batch"), std::string::npos)
        << results[0].output;
  }
}

/// Sanitizers see all that these worlds do in the two that are left to them.
std::vector<std::tuple<int, Over>> worlds() {
  if (::ddp::test::kSanitized) return {{1, kSharedMemory}, {4, kTwoNodes}};
  return {{1, kSharedMemory}, {2, kSharedMemory}, {3, kTcp}, {4, kTwoNodes}};
}
INSTANTIATE_TEST_SUITE_P(OneToFour, Worlds, testing::ValuesIn(worlds()), [](const auto& each) {
  return std::to_string(std::get<0>(each.param)) + "_" + std::get<1>(each.param).name;
});

class BrokenTraining : public testing::TestWithParam<const char*> {};

TEST_P(BrokenTraining, IsNoticed) {
  RankProcesses ranks(2, {built_program("sharded_training"), "--break", GetParam()});
  bool noticed = false;
  for (const RankResult& result : ranks.wait(Deadline::after(kPatience))) {
    noticed = noticed || result.exit_code != 0;
  }
  EXPECT_TRUE(noticed);
}

INSTANTIATE_TEST_SUITE_P(Ways, BrokenTraining, testing::Values("no-average", "skip-parameter-broadcast", "wrong-shard"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ExactAverage, GivesTheSameBitsForAnyNumberOfRanksAndPlacement) {
  std::string bits;
  for (const auto& [size, over] :
       {std::pair{1, kSharedMemory}, std::pair{2, kTcp}, std::pair{3, kSharedMemory}, std::pair{4, kTwoNodes}}) {
    RankProcesses ranks(size, {built_program("rank_program"), "exact-average"}, {}, over.memory_domains);
    for (const RankResult& result : ranks.wait(Deadline::after(kPatience))) {
      const auto place = result.output.find("EXACT ");
      ASSERT_NE(place, std::string::npos) << result.output;
      if (bits.empty()) bits = result.output.substr(place, 22);
      EXPECT_EQ(result.output.substr(place, 22), bits) << size << " ranks";
    }
  }
}

TEST(FaultInAReducer, AHookKeepsNothingOfAStepInWhichARankDied) {
  std::list<RankProcesses> jobs;
  for (const char* hook : {"0", "1", "2"}) {
    jobs.emplace_back(3, std::vector<std::string>{built_program("rank_program"), "hook-loss", hook});
  }
  for (RankProcesses& ranks : jobs) {
    const auto results = ranks.wait(Deadline::after(kPatience), 1);
    for (const std::size_t rank : {0U, 2U}) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
  }
}

constexpr std::array kPhases{"construction", "rebuild", "buckets", "hook", "finalize", "buffers", "join"};

/// The number behind "WAITED ", in seconds; -1 when there is none.
double waited(const std::string& output) {
  const auto place = output.rfind("WAITED ");
  return place == std::string::npos ? -1 : std::stod(output.substr(place + 7));
}

/// One job for each phase, at the same time: they do little but wait.
void expect_named(int signal, const Over& over, double limit) {
  std::list<RankProcesses> jobs;
  for (const char* phase : kPhases) {
    jobs.emplace_back(
        3, std::vector<std::string>{built_program("rank_program"), "reducer-fault", phase, "1", std::to_string(signal)},
        std::vector<std::string>{"DDP_COLLECTIVE_TIMEOUT=10"}, over.memory_domains);
  }
  auto phase = kPhases.begin();
  for (RankProcesses& ranks : jobs) {
    const auto results = ranks.wait(Deadline::after(kPatience), 1);
    for (const std::size_t rank : {0U, 2U}) {
      const std::string& output = results[rank].output;
      EXPECT_EQ(results[rank].exit_code, 3) << *phase << ": " << output;
      EXPECT_NE(output.find("code=peer_lost ranks=[1]"), std::string::npos) << *phase << ": " << output;
      EXPECT_GE(waited(output), 0) << output;
      EXPECT_LT(waited(output), limit) << *phase << ": " << output;
    }
    ++phase;
  }
}

TEST(FaultInAReducer, AKilledRankIsNamedInEveryPhase) { expect_named(SIGKILL, kTwoNodes, 10); }

// the time of a step's other operations, and of a busy machine, is added to the deadline
TEST(FaultInAReducer, AStoppedRankIsNamedInEveryPhaseWithinTheDeadline) { expect_named(SIGSTOP, kSharedMemory, 20); }

struct ParameterDifference {
  const char* what;
  const char* named;
};

class Parameters : public testing::TestWithParam<ParameterDifference> {};

TEST_P(Parameters, ThatDifferAreRefusedOnEveryRankByName) {
  RankProcesses ranks(3, {built_program("rank_program"), "parameters", GetParam().what, "1"});
  for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(60)))) {
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("code=mismatch ranks=[1]"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find(GetParam().named), std::string::npos) << result.output;
  }
}

TEST(OneRanksParameters, ThatItFindsWrongAreRefusedOnEveryRank) {
  RankProcesses ranks(3, {built_program("rank_program"), "parameters", "memory", "1"});
  for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(60)))) {
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("code=invalid_argument ranks=[1]"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("on rank 1, the gradients of 'layer3.weight' and 'layer6.weight' share memory"),
              std::string::npos)
        << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Parameters,
                         testing::Values(ParameterDifference{"count", "'layer7.weight'"},
                                         ParameterDifference{"strides", "'layer3.weight' float32[3000] with strides"},
                                         ParameterDifference{"requires", "'layer3.weight' float32[3000] without"},
                                         ParameterDifference{"option", "rank 1 has bucket limits"},
                                         ParameterDifference{"buffer", "rank 1 has count int64[1]"},
                                         ParameterDifference{"none", "'layer0.weight'"},
                                         ParameterDifference{"name", "'layer3.bias'"},
                                         ParameterDifference{"shape", "'layer3.weight' float32[30, 100]"},
                                         ParameterDifference{"dtype", "'layer3.weight' float64[3000]"},
                                         ParameterDifference{"gradient", "'layer3.weight' float32[3000] with"}),
                         [](const auto& each) { return std::string(each.param.what); });

}  // namespace
}  // namespace ddp::test
