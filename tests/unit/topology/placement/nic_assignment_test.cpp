// Which NICs a rank gets.
#include "unit/topology/machines.hpp"

namespace ddp {
namespace {

using Nics = std::vector<std::vector<int>>;

std::vector<Placement> nic_placements(const Topology::Parts& parts, int num_ranks,
                                      BindPolicy policy = BindPolicy::numa) {
  return place(Topology::from_parts(parts), {.num_ranks = num_ranks, .policy = policy, .gpus = std::nullopt});
}

Nics nics_of(const std::vector<Placement>& placements) {
  Nics nics;
  for (const Placement& placement : placements) nics.push_back(placement.nics);
  return nics;
}

/// 1 NUMA node with GPUs that all have their own root port.
Topology::Parts gpus_on_root_ports(int count) {
  auto parts = ddp::test::make_processors({.packages = 1, .numa_nodes = 1, .cores = 8, .threads = 1});
  for (int i = 0; i < count; ++i) ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {i, 100 + i}));
  return parts;
}

TEST(NicAssignment, OneOfThoseOnTheSwitchForEachGpu) {
  // ranks 2i and 2i + 1 are as near to NIC 2i as to NIC 2i + 1
  EXPECT_EQ(nics_of(nic_placements(ddp::test::eight_gpu_machine(), 8)), (Nics{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(NicAssignment, ALoneRankOfASwitchHasBoth) {
  EXPECT_EQ(nics_of(nic_placements(ddp::test::eight_gpu_machine(), 4)), (Nics{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // GPUs 0, 1, 2, 4, 6: only the first switch has two ranks
  EXPECT_EQ(nics_of(nic_placements(ddp::test::eight_gpu_machine(), 5)), (Nics{{0}, {1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(NicAssignment, TwoRanksOfOneGpuHaveTheNicsOfTheirSwitch) {
  // 16 ranks: 4 for each switch with its 2 NICs
  EXPECT_EQ(nics_of(nic_placements(ddp::test::eight_gpu_machine(), 16)),
            (Nics{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}, {4}, {4}, {5}, {5}, {6}, {6}, {7}, {7}}));
}

TEST(NicAssignment, DualRail) {
  const auto parts = ddp::test::dual_rail_machine();
  EXPECT_EQ(nics_of(nic_placements(parts, 1)), (Nics{{0, 1}})) << "the rank has both NUMA nodes, and so both rails";
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {1}}));
  EXPECT_EQ(nics_of(nic_placements(parts, 4)), (Nics{{0}, {0}, {1}, {1}}));
}

TEST(NicAssignment, NearCoresDecideWithoutBindingToo) {
  EXPECT_EQ(nics_of(nic_placements(ddp::test::dual_rail_machine(), 2, BindPolicy::none)), (Nics{{0}, {1}}));
  EXPECT_EQ(nics_of(nic_placements(ddp::test::dual_rail_machine(), 2, BindPolicy::socket)), (Nics{{0}, {1}}));
  EXPECT_EQ(nics_of(nic_placements(ddp::test::dual_rail_machine(), 1, BindPolicy::core)), (Nics{{0}}))
      << "its core is on node 0";
}

TEST(NicAssignment, TheOnlyOneServesAll) {
  const auto placements = nic_placements(ddp::test::asymmetric_machine(), 4);
  EXPECT_EQ(nics_of(placements), (Nics{{0}, {0}, {0}, {0}}));
  EXPECT_THAT(placements[0].decisions[1].reason, HasSubstr("4 ranks share it"));
  EXPECT_THAT(placements[3].decisions[1].reason, HasSubstr("SYS"));
  auto rails = ddp::test::dual_rail_machine();
  rails.nics[1].locality = rails.nics[0].locality;
  EXPECT_THAT(nic_placements(rails, 4)[0].decisions[1].alternatives,
              ElementsAre("ib1 (mlx5_1): PHB as well, but local ranks 2, 3 have it"));
}

TEST(NicAssignment, ARankWithAChoiceLeavesTheOnlyOneToAnother) {
  // GPU 0 shares a host bridge with NICs 0 and 1. GPU 1 is below the switch of NIC 0, which is nearer to it.
  auto parts = ddp::test::make_processors({.packages = 1, .numa_nodes = 1, .cores = 8, .threads = 1});
  ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 1}));
  ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 2, 3, 4}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {0, 2, 3, 5}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {0, 6}));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{1}, {0}}));
}

TEST(NicAssignment, BridgesOnlyBreakTies) {
  // NIC 0 is behind one bridge more than NIC 1, but both are PHB from both GPUs
  auto parts = ddp::test::make_processors({.packages = 1, .numa_nodes = 1, .cores = 8, .threads = 1});
  for (int i = 0; i < 2; ++i) ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 10 + i}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {0, 20, 21}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {0, 30}));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {1}})) << "none is used twice";
  EXPECT_EQ(nics_of(nic_placements(parts, 1)), (Nics{{1, 0}}))
      << "a lone rank has both, the one with fewer bridges first";
}

TEST(NicAssignment, FurtherNicsAreOnlyForRanksThatNeedNotShareThem) {
  auto parts = gpus_on_root_ports(2);
  for (int i = 0; i < 3; ++i) ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {50 + i, 150 + i}));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {1}})) << "the third one would be one rank's advantage";
  EXPECT_THAT(nic_placements(parts, 2)[0].decisions[1].alternatives,
              ElementsAre("ib1 (mlx5_1): NODE as well, but local rank 1 has it",
                          "ib2 (mlx5_2): NODE as well, but there are not enough for all ranks"));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0, {60, 160}));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0, 2}, {1, 3}}));
}

TEST(NicAssignment, ManagementPortsAreLeftOut) {
  auto parts = ddp::test::eight_gpu_machine();
  ddp::test::add_ethernet(parts, ddp::test::near_numa_node(parts, 0, {0, 1, 2, 99}), "eth0", 400);
  parts.nics[1].rate_gbps = 100;
  parts.nics[2].rate_gbps = 0;
  parts.nics[3].usable = false;
  parts.nics[3].unusable_reason = "its port is DOWN";
  const auto placements = nic_placements(parts, 4);
  EXPECT_EQ(nics_of(placements), (Nics{{0}, {2}, {4, 5}, {6, 7}})) << "NIC 2 has an unknown rate, and stays";
  const auto& others = placements[1].decisions[1].alternatives;
  EXPECT_THAT(others, Contains("ib1 (mlx5_1): 100 Gbit/s, less than half of the fastest NIC's 400"));
  EXPECT_THAT(others, Contains("ib3 (mlx5_3): not usable: its port is DOWN"));
  EXPECT_THAT(others, Contains("eth0: neither RDMA nor a cluster fabric, which other NICs are"));
  EXPECT_THAT(others, Contains("ib0 (mlx5_0): SYS, further than PIX"));
}

TEST(NicAssignment, HalfTheRateIsEnough) {
  auto parts = gpus_on_root_ports(2);
  ddp::test::add_ethernet(parts, ddp::test::near_numa_node(parts, 0), "eth0", 100);
  ddp::test::add_ethernet(parts, ddp::test::near_numa_node(parts, 0), "eth1", 200);
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {1}}));
  parts.nics[0].rate_gbps = 99;
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{1}, {1}}));
}

TEST(NicAssignment, EthernetWillDoWhereNothingElseIsUsable) {
  auto parts = ddp::test::one_numa_machine();
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {0}}));
  auto& fabric = ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 0));
  fabric.usable = false;
  fabric.unusable_reason = "its port is DOWN";
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{0}, {0}}));
}

TEST(NicAssignment, NoNic) {
  auto parts = ddp::test::eight_gpu_machine();
  for (Nic& nic : parts.nics) nic.usable = false;
  EXPECT_THAT(nics_of(nic_placements(parts, 2)), Each(ElementsAre()));
  EXPECT_EQ(nic_placements(parts, 2)[0].decisions[1].reason, "no NIC is usable");
  parts.nics.clear();
  EXPECT_EQ(nic_placements(parts, 2)[0].decisions[1].chosen, "none");
}

TEST(NicAssignment, TheOtherPackageIsFurtherThanTheOwn) {
  // no NIC on NUMA node 0; NIC 0 on the other package, NIC 1 on the same one
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 2, .cores = 4, .threads = 1});
  ddp::test::add_gpu(parts, ddp::test::near_numa_node(parts, 0, {0, 1}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 2, {2, 3}));
  ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 1, {4, 5}));
  const auto placements = nic_placements(parts, 1);
  EXPECT_EQ(nics_of(placements), (Nics{{1}}));
  EXPECT_THAT(placements[0].decisions[1].alternatives,
              ElementsAre("ib0 (mlx5_0): SYS to the other package, further than SYS on its own"));
}

TEST(NicAssignment, CoresDecideWhereTheGpusPlaceIsUnknown) {
  // a virtual machine that shows its GPUs on no NUMA node: the ranks' cores are the best that is known
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 1, .cores = 4, .threads = 1});
  for (int i = 0; i < 2; ++i) ddp::test::add_gpu(parts, ddp::test::near_package(parts, -1));
  for (int i = 0; i < 2; ++i) ddp::test::add_nic(parts, ddp::test::near_numa_node(parts, 1 - i));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{1}, {0}}));
}

TEST(NicAssignment, PackagesDecideWhereThereAreNoNumaNodes) {
  auto parts = ddp::test::make_processors({.packages = 2, .numa_nodes = 0, .cores = 4, .threads = 1});
  for (int i = 0; i < 2; ++i) ddp::test::add_nic(parts, ddp::test::near_package(parts, 1 - i));
  EXPECT_EQ(nics_of(nic_placements(parts, 2)), (Nics{{1}, {0}}));
}

}  // namespace
}  // namespace ddp
