// Which GPU a rank gets.
#include <ddp/error.hpp>

#include "unit/kvs/rank_threads.hpp"
#include "unit/topology/machines.hpp"

namespace ddp {
namespace {

std::vector<Placement> gpu_placements(const Topology::Parts& parts, int num_ranks, std::vector<CpuSet> allowed = {},
                                      std::optional<std::vector<int>> gpus = std::nullopt) {
  return place(
      Topology::from_parts(parts),
      {.num_ranks = num_ranks, .policy = BindPolicy::numa, .allowed = std::move(allowed), .gpus = std::move(gpus)});
}

/// -1: none
std::vector<int> gpus_of(const std::vector<Placement>& placements) {
  std::vector<int> gpus;
  for (const Placement& placement : placements) gpus.push_back(placement.gpu.value_or(-1));
  return gpus;
}

std::vector<bool> shared(const std::vector<Placement>& placements) {
  std::vector<bool> shared;
  for (const Placement& placement : placements) shared.push_back(placement.gpu_shared);
  return shared;
}

TEST(GpuAssignment, OneForEachRank) {
  const auto placements = gpu_placements(ddp::test::eight_gpu_machine(), 8);
  EXPECT_THAT(gpus_of(placements), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(shared(placements), Each(false));
}

TEST(GpuAssignment, FewerRanksAreSpread) {
  const auto parts = ddp::test::eight_gpu_machine();
  EXPECT_THAT(gpus_of(gpu_placements(parts, 1)), ElementsAre(0));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2)), ElementsAre(0, 4)) << "one on each package";
  EXPECT_THAT(gpus_of(gpu_placements(parts, 3)), ElementsAre(0, 2, 4)) << "2 and 1; the 2 on different NUMA nodes";
  EXPECT_THAT(gpus_of(gpu_placements(parts, 4)), ElementsAre(0, 2, 4, 6)) << "one on each switch";
  EXPECT_THAT(gpus_of(gpu_placements(parts, 5)), ElementsAre(0, 1, 2, 4, 6)) << "3 and 2, of the 3 one switch has 2";
  EXPECT_THAT(gpus_of(gpu_placements(parts, 7)), ElementsAre(0, 1, 2, 3, 4, 5, 6)) << "4 and 3";
}

TEST(GpuAssignment, WhatIsNotNeededIsNamedOnce) {
  const auto placements = gpu_placements(ddp::test::eight_gpu_machine(), 2);
  EXPECT_THAT(gpus_of(placements), ElementsAre(0, 4));
  EXPECT_THAT(
      placements[0].decisions[0].alternatives,
      ElementsAre("1 (0000:11:00.0): not needed by any rank", StartsWith("2 "), StartsWith("3 "),
                  "4 (0000:14:00.0): given to local rank 1", StartsWith("5 "), StartsWith("6 "), StartsWith("7 ")));
}

TEST(GpuAssignment, SwitchesOfOneNumaNodeAreSpreadOver) {
  // 1 NUMA node with GPUs 0, 1, 2 on one switch and GPU 3 on another one below the same host bridge
  auto parts = ddp::test::make_processors({.packages = 1, .numa_nodes = 1, .cores = 8, .threads = 1});
  for (int i = 0; i < 3; ++i) ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 7, 8, 10 + i}));
  ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 1, 2, 3}));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2)), ElementsAre(0, 3));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 3)), ElementsAre(0, 1, 3));
}

TEST(GpuAssignment, MoreRanksShareWithTheirNeighbours) {
  const auto parts = ddp::test::asymmetric_machine();
  EXPECT_THAT(gpus_of(gpu_placements(parts, 8)), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  // 6 ranks, 4 GPUs: floor(r * 4 / 6)
  const auto placements = gpu_placements(parts, 6);
  EXPECT_THAT(gpus_of(placements), ElementsAre(0, 0, 1, 2, 2, 3));
  EXPECT_THAT(shared(placements), ElementsAre(true, true, false, true, true, false));
  EXPECT_THAT(placements[0].decisions[0].reason, HasSubstr("6 ranks share 4 GPUs"));
}

TEST(GpuAssignment, HiddenOnesAreLeftOut) {
  auto parts = ddp::test::eight_gpu_machine();
  for (const std::size_t i : {0, 3, 5}) {
    parts.gpus[i].visible = false;
    parts.gpus[i].hidden_reason = "its device file may not be opened (EPERM)";
  }
  const auto placements = gpu_placements(parts, 5);
  EXPECT_THAT(gpus_of(placements), ElementsAre(1, 2, 4, 6, 7));
  EXPECT_THAT(placements[0].decisions[0].alternatives,
              Contains("0 (0000:10:00.0): hidden: its device file may not be opened (EPERM)"));
  for (Gpu& gpu : parts.gpus) gpu.visible = false;
  const auto without = gpu_placements(parts, 5);
  EXPECT_THAT(gpus_of(without), Each(-1));
  EXPECT_EQ(without[0].decisions[0].chosen, "none");
  EXPECT_EQ(without[0].decisions[0].reason, "no GPU may be used");
}

TEST(GpuAssignment, TheVendorWithMostGpusIsUsed) {
  auto parts = ddp::test::eight_gpu_machine();
  for (const std::size_t i : {1, 2, 3, 4, 5}) parts.gpus[i].vendor = Vendor::amd;
  EXPECT_THAT(gpus_of(gpu_placements(parts, 5)), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(gpu_placements(parts, 5)[0].decisions[0].alternatives,
              Contains("0 (0000:10:00.0): of vendor NVIDIA; those of AMD are used"));
  parts.gpus[1].vendor = Vendor::nvidia;
  EXPECT_THAT(gpus_of(gpu_placements(parts, 4)), ElementsAre(0, 1, 6, 7)) << "4 and 4: NVIDIA";
  parts.gpus[6].visible = false;
  EXPECT_THAT(gpus_of(gpu_placements(parts, 4)), ElementsAre(2, 3, 4, 5)) << "hidden ones do not count";
}

TEST(GpuAssignment, GivenGpusKeepTheirOrder) {
  const auto parts = ddp::test::eight_gpu_machine();
  EXPECT_THAT(gpus_of(gpu_placements(parts, 3, {}, {{6, 1, 4}})), ElementsAre(6, 1, 4));
  const auto fewer = gpu_placements(parts, 1, {}, {{6, 1, 4}});
  EXPECT_THAT(gpus_of(fewer), ElementsAre(6));
  EXPECT_THAT(fewer[0].decisions[0].alternatives, Contains("1 (0000:11:00.0): not needed by any rank"));
  const auto more = gpu_placements(parts, 5, {}, {{6, 1, 4}});
  EXPECT_THAT(gpus_of(more), ElementsAre(6, 1, 4, 6, 1));
  EXPECT_THAT(shared(more), ElementsAre(true, true, false, true, true));
  EXPECT_THAT(more[0].decisions[0].alternatives, Contains("0 (0000:10:00.0): not among the requested GPUs"));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2, {}, {std::vector<int>{}})), Each(-1))
      << "CUDA_VISIBLE_DEVICES is set to nothing";
}

TEST(GpuAssignment, GivenGpusThatAreHiddenHaveNoNumber) {
  auto parts = ddp::test::eight_gpu_machine();
  parts.gpus[6].visible = false;
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2, {}, {{6, 1, 4}})), ElementsAre(1, 4));
}

TEST(GpuAssignment, UnknownGpusAreRefused) {
  for (const int index : {-1, 8}) {
    const auto error = ddp::test::error_of([&] {
      gpu_placements(ddp::test::eight_gpu_machine(), 1, {}, {{0, index}});
    });
    ASSERT_TRUE(error) << index;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("GPU " + std::to_string(index)), HasSubstr("GPUs 0 to 7")));
  }
}

TEST(GpuAssignment, AMaskThatExcludesAPackageLeavesItsGpusForLast) {
  const auto parts = ddp::test::eight_gpu_machine();
  const CpuSet second = CpuSet::parse("16-31,48-63");  // NUMA nodes 2 and 3
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2, {second})), ElementsAre(4, 6));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 5, {second})), ElementsAre(0, 4, 5, 6, 7));
}

TEST(GpuAssignment, BoundRanksGetGpusNearTheirCores) {
  const auto parts = ddp::test::eight_gpu_machine();
  // Slurm's cyclic distribution: odd tasks on the second package. NUMA nodes 0 and 2.
  const CpuSet first = CpuSet::parse("0-7");
  const CpuSet second = CpuSet::parse("16-23");
  EXPECT_THAT(gpus_of(gpu_placements(parts, 4, {first, second, first, second})), ElementsAre(0, 4, 1, 5));
  EXPECT_THAT(gpus_of(gpu_placements(parts, 2, {second, first})), ElementsAre(4, 0));
  // Rank 0 may run anywhere, but GPUs 0 and 1 are all that is near ranks 1 and 2.
  const CpuSet all = CpuSet::parse("0-63");
  EXPECT_THAT(gpus_of(gpu_placements(parts, 3, {all, first, first})), ElementsAre(2, 0, 1));
  // 4 ranks of one NUMA node with 2 GPUs: the other two take those of the same package
  EXPECT_THAT(gpus_of(gpu_placements(parts, 5, {second, second, second, second, first})), ElementsAre(4, 5, 6, 7, 0));
}

TEST(GpuAssignment, BoundRanksShareEvenly) {
  // 4 ranks on package 0 with 3 GPUs, 4 on package 1 with 1: no GPU has more than 2 ranks
  const auto parts = ddp::test::asymmetric_machine();
  const CpuSet first = CpuSet::parse("0-5");
  const CpuSet second = CpuSet::parse("6-11");
  const auto gpus = gpus_of(gpu_placements(parts, 8, {first, first, first, first, second, second, second, second}));
  for (const int gpu : {0, 1, 2, 3}) EXPECT_EQ(std::count(gpus.begin(), gpus.end(), gpu), 2) << gpu;
  EXPECT_EQ(std::count(gpus.begin() + 4, gpus.end(), 3), 2) << "the near one goes to ranks of package 1";
}

TEST(GpuAssignment, ManyAlternativesAreCutShort) {
  auto parts = ddp::test::make_processors({.packages = 1, .numa_nodes = 1, .cores = 4, .threads = 1});
  for (int i = 0; i < 20; ++i) ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0));
  const auto placements = gpu_placements(parts, 20);
  EXPECT_THAT(placements[0].decisions[0].alternatives, SizeIs(16));
  EXPECT_EQ(placements[0].decisions[0].alternatives.back(), "and 4 more");
  const auto all_shown = gpu_placements(parts, 17, {}, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}});
  EXPECT_EQ(all_shown[0].decisions[0].alternatives.back(), "and 4 more");
}

}  // namespace
}  // namespace ddp
