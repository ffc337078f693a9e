// What place() takes and gives as a whole; the rules for GPUs, NICs and cores have tests of their own.
#include <ddp/error.hpp>

#include "unit/kvs/rank_threads.hpp"
#include "unit/topology/machines.hpp"

namespace ddp {
namespace {

std::optional<Error> refused(const PlacementRequest& request) {
  const Topology topology = Topology::from_parts(ddp::test::one_numa_machine());
  auto error = ddp::test::error_of([&] { place(topology, request); });
  if (error) {
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
  return error;
}

PlacementRequest request(int num_ranks, std::vector<CpuSet> allowed = {}) {
  return {.num_ranks = num_ranks, .policy = BindPolicy::numa, .allowed = std::move(allowed), .gpus = std::nullopt};
}

TEST(Placement, NoRanksAreRefused) {
  for (const int num_ranks : {0, -1}) ASSERT_TRUE(refused(request(num_ranks)));
  EXPECT_FALSE(refused(request(1)));
}

TEST(Placement, ThereIsOneAllowedSetForAllOrOneForEach) {
  const CpuSet cpus = CpuSet::parse("0-3");
  EXPECT_FALSE(refused(request(3)));
  EXPECT_FALSE(refused(request(3, {cpus})));
  EXPECT_FALSE(refused(request(3, {cpus, cpus, cpus})));
  for (const std::size_t count : {2, 4}) {
    const auto error = refused(request(3, std::vector<CpuSet>(count, cpus)));
    ASSERT_TRUE(error) << count;
    EXPECT_THAT(error->cause(), HasSubstr(std::to_string(count) + " sets of allowed processors for 3 ranks"));
  }
}

TEST(Placement, AnAllowedSetWithoutProcessorsOfTheMachineIsRefused) {
  const CpuSet cpus = CpuSet::parse("0-3");
  for (const CpuSet& foreign : {CpuSet{}, CpuSet::parse("6-100")}) {
    ASSERT_TRUE(refused(request(1, {foreign})));
    const Error error = refused(request(2, {cpus, foreign})).value();
    EXPECT_THAT(error.cause(), HasSubstr("local rank 1"));
    EXPECT_THAT(error.cause(), HasSubstr("(0-5)"));
  }
  const auto placements =
      place(Topology::from_parts(ddp::test::one_numa_machine()), request(1, {CpuSet::parse("5-100")}));
  EXPECT_EQ(placements[0].cpus.to_string(), "5") << "what the machine does not have is left out";
}

TEST(Placement, EachRankKnowsItselfAndItsDecisions) {
  const auto placements = place(Topology::from_parts(ddp::test::eight_gpu_machine()), request(8));
  ASSERT_EQ(placements.size(), 8U);
  for (int rank = 0; rank < 8; ++rank) {
    const Placement& placement = placements[static_cast<std::size_t>(rank)];
    EXPECT_EQ(placement.local_rank, rank);
    std::vector<std::string> subjects;
    for (const Decision& decision : placement.decisions) {
      subjects.push_back(decision.subject);
      EXPECT_FALSE(decision.chosen.empty()) << decision.subject;
      EXPECT_FALSE(decision.reason.empty()) << decision.subject;
      EXPECT_LE(decision.alternatives.size(), 16U) << decision.subject;
    }
    EXPECT_THAT(subjects, ElementsAre("GPU", "NIC", "NUMA node", "cores"));
  }
}

TEST(Placement, TheExampleOfTheDocuments) {
  // docs/reference/placement.md
  const auto placements = place(Topology::from_parts(ddp::test::eight_gpu_machine()), request(8));
  const Placement& rank = placements[5];
  EXPECT_EQ(rank.gpu, 5);
  EXPECT_THAT(rank.nics, ElementsAre(5));
  EXPECT_THAT(rank.numa_nodes, ElementsAre(2));
  EXPECT_EQ(rank.cpus.to_string(), "20-23,52-55");
  EXPECT_EQ(rank.decisions[0].chosen, "5 (0000:15:00.0)");
  EXPECT_EQ(rank.decisions[0].reason, "one GPU for each rank, in PCI order");
  EXPECT_EQ(rank.decisions[1].chosen, "ib5 (mlx5_5)");
  EXPECT_EQ(rank.decisions[1].reason, "nearest to its GPU: PIX");
  EXPECT_EQ(rank.decisions[1].alternatives[0], "ib4 (mlx5_4): PIX as well, but local rank 4 has it");
  EXPECT_EQ(rank.decisions[2].chosen, "2");
  EXPECT_EQ(rank.decisions[2].reason, "nearest to GPU 5");
  EXPECT_EQ(rank.decisions[2].alternatives[0], "0: has local ranks 0, 1; SYS to GPU 5");
  EXPECT_EQ(rank.decisions[3].chosen, "4 (processors 20-23,52-55)");
  EXPECT_EQ(rank.decisions[3].reason, "an even share of 8 cores for local ranks 4, 5");
  EXPECT_THAT(rank.decisions[3].alternatives, ElementsAre("4 (processors 16-19,48-51): local rank 4 has them"));
}

}  // namespace
}  // namespace ddp
