// Which cores a rank runs on.
#include "topology/placement/core_pools.hpp"
#include "unit/topology/machines.hpp"

namespace ddp {
namespace {

std::vector<Placement> core_placements(const Topology::Parts& parts, int num_ranks,
                                       BindPolicy policy = BindPolicy::numa, std::vector<CpuSet> allowed = {}) {
  return place(Topology::from_parts(parts),
               {.num_ranks = num_ranks, .policy = policy, .allowed = std::move(allowed), .gpus = std::nullopt});
}

std::vector<std::string> cpus_of(const std::vector<Placement>& placements) {
  std::vector<std::string> cpus;
  for (const Placement& placement : placements) cpus.push_back(placement.cpus.to_string());
  return cpus;
}

std::vector<CpuSet> sets(const std::vector<std::string>& lists) {
  std::vector<CpuSet> sets;
  for (const std::string& list : lists) sets.push_back(CpuSet::parse(list));
  return sets;
}

TEST(InProportion, WholePartsAndThenTheLargestFractions) {
  using topology::in_proportion;
  EXPECT_THAT(in_proportion(4, {8, 8}), ElementsAre(2, 2));
  EXPECT_THAT(in_proportion(3, {8, 8}), ElementsAre(2, 1)) << "1.5 and 1.5: the first of equals";
  EXPECT_THAT(in_proportion(5, {6, 2, 2}), ElementsAre(3, 1, 1));
  EXPECT_THAT(in_proportion(4, {5, 5, 2}), ElementsAre(2, 2, 0)) << "1.67, 1.67, 0.67: 1 + 1 + 0, and 2 are left";
  EXPECT_THAT(in_proportion(10, {1, 2}), ElementsAre(3, 7));
  EXPECT_THAT(in_proportion(0, {1, 2}), ElementsAre(0, 0));
}

TEST(CoreAssignment, GpusOfOneNumaNodeShareItsCores) {
  const auto placements = core_placements(ddp::test::eight_gpu_machine(), 8);
  EXPECT_THAT(cpus_of(placements), ElementsAre("0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47", "16-19,48-51",
                                               "20-23,52-55", "24-27,56-59", "28-31,60-63"));
  for (const Placement& placement : placements) {
    EXPECT_EQ(placement.num_cores, 4);
    EXPECT_THAT(placement.numa_nodes, ElementsAre(placement.local_rank / 2));
    EXPECT_FALSE(placement.cores_shared);
  }
}

TEST(CoreAssignment, AloneOnANumaNode) {
  // GPUs 0 and 4, on NUMA nodes 0 and 2: each rank has all of it, and none of the nodes that no GPU in use is near
  EXPECT_THAT(cpus_of(core_placements(ddp::test::eight_gpu_machine(), 2)), ElementsAre("0-7,32-39", "16-23,48-55"));
}

TEST(CoreAssignment, LargerSharesGoFirst) {
  // 3 ranks on 6 cores of package 0 (GPUs 0, 1, 2), 1 on package 1
  EXPECT_THAT(cpus_of(core_placements(ddp::test::asymmetric_machine(), 4)), ElementsAre("0-1", "2-3", "4-5", "6-11"));
  // 5 ranks on GPUs 0 0 1 2 3: 4 ranks on 6 cores
  EXPECT_THAT(cpus_of(core_placements(ddp::test::asymmetric_machine(), 5)),
              ElementsAre("0-1", "2-3", "4", "5", "6-11"));
}

TEST(CoreAssignment, OneNumaNode) {
  EXPECT_THAT(cpus_of(core_placements(ddp::test::one_numa_machine(), 1)), ElementsAre("0-5"));
  EXPECT_THAT(cpus_of(core_placements(ddp::test::one_numa_machine(), 4)), ElementsAre("0-1", "2-3", "4", "5"));
}

TEST(CoreAssignment, WithoutGpusRanksAreSpreadByCores) {
  const auto parts = ddp::test::cpu_machine();
  EXPECT_THAT(cpus_of(core_placements(parts, 4)), ElementsAre("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"));
  // 6 ranks on 4 equal nodes: 1.5 each; the first two nodes get 2
  EXPECT_THAT(cpus_of(core_placements(parts, 6)),
              ElementsAre("0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23", "8-11,24-27", "12-15,28-31"));
}

TEST(CoreAssignment, UnequalNumaNodesGetRanksInProportion) {
  // cores 0 to 3 of node 0, core 4 of node 1, all of nodes 2 and 3: 4 + 1 + 4 + 4 = 13 cores for 13 ranks
  const auto placements = core_placements(ddp::test::cpu_machine(), 13, BindPolicy::numa, sets({"0-4,8-15"}));
  for (int rank = 0; rank < 13; ++rank) {
    const Placement& placement = placements[static_cast<std::size_t>(rank)];
    EXPECT_EQ(placement.cpus.to_string(), std::to_string(rank < 5 ? rank : rank + 3));
    EXPECT_FALSE(placement.cores_shared);
  }
}

TEST(CoreAssignment, FewRanksHaveWholeNeighbouringNumaNodes) {
  const auto parts = ddp::test::cpu_machine();
  const auto one = core_placements(parts, 1);
  EXPECT_EQ(one[0].cpus.to_string(), "0-31");
  EXPECT_THAT(one[0].numa_nodes, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(one[0].num_cores, 16);
  EXPECT_THAT(cpus_of(core_placements(parts, 2)), ElementsAre("0-7,16-23", "8-15,24-31")) << "a package each";
  EXPECT_THAT(cpus_of(core_placements(parts, 3)), ElementsAre("0-7,16-23", "8-11,24-27", "12-15,28-31"));
}

TEST(CoreAssignment, APartOfACoreCountsAsThatPart) {
  // of core 0 only the second thread, of core 1 only the first one, of core 2 both
  const auto placements = core_placements(ddp::test::cpu_machine(), 3, BindPolicy::numa, sets({"1-2,16,18"}));
  EXPECT_THAT(cpus_of(placements), ElementsAre("16", "1", "2,18"));
  for (const Placement& placement : placements) EXPECT_EQ(placement.num_cores, 1);
}

TEST(CoreAssignment, TheTopologysOwnLimitHoldsWhereNothingIsGiven) {
  auto parts = ddp::test::cpu_machine();
  parts.allowed = CpuSet::parse("0-1,4-5");
  EXPECT_THAT(cpus_of(core_placements(parts, 2)), ElementsAre("0-1", "4-5"));
  EXPECT_THAT(cpus_of(core_placements(parts, 2, BindPolicy::none)), Each("0-1,4-5"));
}

TEST(CoreAssignment, SurplusRanksMoveToTheNearestSpareCores) {
  // 12 ranks on 4 GPUs, 3 each: 9 ranks belong to the 6 cores of package 0, 3 to package 1. Ranks 6, 7, 8 move.
  const auto placements = core_placements(ddp::test::asymmetric_machine(), 12);
  EXPECT_THAT(cpus_of(placements), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"));
  for (const Placement& placement : placements) EXPECT_FALSE(placement.cores_shared);
  EXPECT_EQ(placements[8].gpu, 2);
  EXPECT_THAT(placements[8].decisions[2].reason, HasSubstr("more ranks than allowed cores"));
  EXPECT_THAT(placements[5].decisions[2].reason, HasSubstr("nearest to GPU 1"));
}

TEST(CoreAssignment, SurplusRanksStayOnTheirPackageIfTheyCan) {
  // 4 NUMA nodes of 2 cores; 3 GPUs near node 2. Node 3 is on the same package, 0 and 1 on the other one.
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 2, .cores = 2, .threads = 1});
  for (int i = 0; i < 3; ++i) ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 2));
  EXPECT_THAT(cpus_of(core_placements(parts, 3)), ElementsAre("4", "5", "6-7"));
}

TEST(CoreAssignment, MoreRanksThanCoresShareThem) {
  const auto placements = core_placements(ddp::test::one_numa_machine(), 8);
  EXPECT_THAT(cpus_of(placements), Each("0-5"));
  for (const Placement& placement : placements) EXPECT_TRUE(placement.cores_shared);
  EXPECT_EQ(placements[0].decisions[3].reason, "8 ranks share 6 cores");
  // all cores are in use before any is shared: 8 ranks belong to node 0 with 6 cores, 1 core of node 1 is allowed
  auto parts = ddp::test::asymmetric_machine();
  parts.gpus.pop_back();
  const auto packed = cpus_of(core_placements(parts, 8, BindPolicy::numa, sets({"0-6"})));
  EXPECT_EQ(packed.back(), "6");
  EXPECT_EQ(std::count(packed.begin(), packed.end(), "0-5"), 7);
}

TEST(CoreAssignment, ANumaNodeWithoutAllowedCores) {
  // GPUs 0 and 1 are near NUMA node 0, which the cpuset excludes; node 1 is on the same package
  auto parts = ddp::test::eight_gpu_machine();
  const auto placements = core_placements(parts, 8, BindPolicy::numa, sets({"8-31"}));
  EXPECT_THAT(cpus_of(placements), ElementsAre("8-9", "10-11", "12-13", "14-15", "16-19", "20-23", "24-27", "28-31"));
  EXPECT_EQ(placements[0].gpu, 0);
  EXPECT_EQ(placements[0].decisions[2].reason, "no core next to GPU 0 is allowed; these are the nearest");
  EXPECT_THAT(placements[0].decisions[2].alternatives,
              ElementsAre("0: no core is allowed; PHB to GPU 0", "2: has local ranks 4, 5; SYS to GPU 0",
                          "3: has local ranks 6, 7; SYS to GPU 0"));
}

TEST(CoreAssignment, MemoryOfAGpuIsNoPlaceForRanks) {
  // Grace Hopper: the GPU's memory is a NUMA node without cores, and the GPU may say that it is near to that
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 1, .cores = 4, .threads = 1});
  for (int i = 0; i < 2; ++i) {
    parts.numa_nodes.push_back({.os_index = 2 + i, .package = i, .memory_bytes = 1ULL << 36U});
    Gpu& gpu = ddp::test::add_gpu(parts, ddp::test::near_package(parts, i));
    gpu.locality.numa_node = 2 + i;
  }
  const auto placements = core_placements(parts, 2);
  EXPECT_THAT(cpus_of(placements), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(placements[1].numa_nodes, ElementsAre(1));
  parts.gpus.clear();
  EXPECT_THAT(cpus_of(core_placements(parts, 4)), ElementsAre("0-1", "2-3", "4-5", "6-7"));
}

TEST(CoreAssignment, AGpuThatIsNearToAWholePackage) {
  // 2 packages with 2 NUMA nodes each; the GPUs do not tell more than their package
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 2, .cores = 2, .threads = 1});
  ddp::test::add_gpu(parts, ddp::test::near_package(parts, 0));
  ddp::test::add_gpu(parts, ddp::test::near_package(parts, 0));
  ddp::test::add_gpu(parts, ddp::test::near_package(parts, 1));
  EXPECT_THAT(cpus_of(core_placements(parts, 3)), ElementsAre("0-1", "2-3", "4-7"));
  // GPU 3 knows its NUMA node, so that the rank of GPU 2 takes the other one
  ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 2));
  EXPECT_THAT(cpus_of(core_placements(parts, 4)), ElementsAre("0-1", "2-3", "6-7", "4-5"));
}

TEST(CoreAssignment, GpusOfUnknownPlaceAreSpread) {
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 1, .cores = 4, .threads = 1});
  for (int i = 0; i < 4; ++i) ddp::test::add_gpu(parts, ddp::test::near_package(parts, -1));
  EXPECT_THAT(cpus_of(core_placements(parts, 4)), ElementsAre("0-1", "2-3", "4-5", "6-7"));
}

TEST(CoreAssignment, MachinesWithoutNumaNodesOrPackages) {
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 0, .cores = 4, .threads = 1});
  EXPECT_THAT(cpus_of(core_placements(parts, 2)), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(core_placements(parts, 2)[0].numa_nodes, ElementsAre());
  EXPECT_EQ(core_placements(parts, 2)[0].decisions[2].chosen, "none");
  parts.packages.clear();
  for (Core& core : parts.cores) core.package = -1;
  for (const BindPolicy policy : {BindPolicy::numa, BindPolicy::socket}) {
    EXPECT_THAT(cpus_of(core_placements(parts, 3, policy)), ElementsAre("0-2", "3-5", "6-7"));
  }
}

TEST(CoreAssignment, PolicySocket) {
  EXPECT_THAT(cpus_of(core_placements(ddp::test::eight_gpu_machine(), 4, BindPolicy::socket)),
              ElementsAre("0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"));
  const auto two = core_placements(ddp::test::eight_gpu_machine(), 2, BindPolicy::socket);
  EXPECT_THAT(cpus_of(two), ElementsAre("0-15,32-47", "16-31,48-63")) << "whole packages, not NUMA nodes";
  EXPECT_THAT(two[1].numa_nodes, ElementsAre(2, 3));
  EXPECT_THAT(cpus_of(core_placements(ddp::test::cpu_machine(), 3, BindPolicy::socket)),
              ElementsAre("0-3,16-19", "4-7,20-23", "8-15,24-31"));
}

TEST(CoreAssignment, PolicyCore) {
  const auto placements = core_placements(ddp::test::eight_gpu_machine(), 8, BindPolicy::core);
  EXPECT_THAT(cpus_of(placements), ElementsAre("0,32", "4,36", "8,40", "12,44", "16,48", "20,52", "24,56", "28,60"));
  for (const Placement& placement : placements) EXPECT_EQ(placement.num_cores, 1);
  // with more ranks than cores, each core has its turn before one has a second
  const auto many = core_placements(ddp::test::one_numa_machine(), 8, BindPolicy::core);
  EXPECT_THAT(cpus_of(many), ElementsAre("0", "1", "2", "3", "4", "5", "0", "1"));
  EXPECT_TRUE(many[0].cores_shared);
  EXPECT_FALSE(many[2].cores_shared);
}

TEST(CoreAssignment, PolicyNone) {
  const auto placements = core_placements(ddp::test::eight_gpu_machine(), 2, BindPolicy::none, sets({"0-31"}));
  EXPECT_THAT(cpus_of(placements), Each("0-31"));
  EXPECT_EQ(placements[0].num_cores, 32);
  EXPECT_TRUE(placements[0].cores_shared);
  EXPECT_EQ(placements[1].gpu, 4) << "GPUs and NICs are chosen as for numa";
  EXPECT_FALSE(core_placements(ddp::test::eight_gpu_machine(), 1, BindPolicy::none)[0].cores_shared);
  const auto bound = core_placements(ddp::test::eight_gpu_machine(), 2, BindPolicy::none, sets({"0-3", "16-19"}));
  EXPECT_THAT(cpus_of(bound), ElementsAre("0-3", "16-19"));
  EXPECT_FALSE(bound[0].cores_shared);
}

TEST(CoreAssignment, DisjointMasksAreKept) {
  // Slurm gave each task 2 cores; rank 1's reach into two NUMA nodes
  const auto placements =
      core_placements(ddp::test::cpu_machine(), 3, BindPolicy::numa, sets({"0-1,16-17", "3-4,19-20", "14-15"}));
  EXPECT_THAT(cpus_of(placements), ElementsAre("0-1,16-17", "3-4,19-20", "14-15"));
  EXPECT_THAT(placements[1].numa_nodes, ElementsAre(0, 1));
  EXPECT_THAT(placements[1].decisions[3].reason, HasSubstr("the mask that this rank was started with"));
  EXPECT_THAT(cpus_of(core_placements(ddp::test::cpu_machine(), 3, BindPolicy::core,
                                      sets({"0-1,16-17", "3-4,19-20", "14-15"}))),
              ElementsAre("0,16", "3,19", "14"));
}

TEST(CoreAssignment, DisjointMasksOfThreadsOfOneCoreAreShared) {
  const auto placements = core_placements(ddp::test::cpu_machine(), 3, BindPolicy::numa, sets({"0", "16", "1"}));
  EXPECT_THAT(cpus_of(placements), ElementsAre("0", "16", "1"));
  EXPECT_TRUE(placements[0].cores_shared);
  EXPECT_FALSE(placements[2].cores_shared);
}

TEST(CoreAssignment, RanksWithTheSameMaskDivideIt) {
  // Slurm's --cpu-bind=sockets with cyclic tasks: ranks 0 and 2 on package 0, 1 and 3 on package 1
  const std::string first = "0-7,16-23";
  const std::string second = "8-15,24-31";
  EXPECT_THAT(
      cpus_of(core_placements(ddp::test::cpu_machine(), 4, BindPolicy::numa, sets({first, second, first, second}))),
      ElementsAre("0-3,16-19", "8-11,24-27", "4-7,20-23", "12-15,28-31"));
  EXPECT_THAT(cpus_of(core_placements(ddp::test::cpu_machine(), 2, BindPolicy::numa, sets({first, first}))),
              ElementsAre("0-3,16-19", "4-7,20-23"));
}

TEST(CoreAssignment, OverlappingMasksLimitTheShares) {
  // the union is all 16 cores: 8 for each rank. Rank 0 may use 4 of its 8, rank 1 has none of its own and keeps its
  // mask
  const auto placements = core_placements(ddp::test::cpu_machine(), 2, BindPolicy::numa, sets({"4-15", "2-5"}));
  EXPECT_THAT(cpus_of(placements), ElementsAre("4-7", "2-5"));
  EXPECT_TRUE(placements[0].cores_shared);
  EXPECT_THAT(placements[0].decisions[3].reason, HasSubstr("as far as the mask that this rank was started with"));
  EXPECT_THAT(placements[1].decisions[3].reason, HasSubstr("it has none of the cores"));
}

}  // namespace
}  // namespace ddp
