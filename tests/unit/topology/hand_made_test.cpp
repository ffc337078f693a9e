// Small machines in tests/topologies, each with one thing that is easy to get wrong: read from XML, ranks placed,
// settings derived.
#include <ddp/topology.hpp>

#include "topology/placement/settings.hpp"
#include "unit/topology/machine_summary.hpp"

namespace ddp::topology {
namespace {

Topology load(const std::string& name) {
  return Topology::from_xml_file((ddp::test::source_root() / "tests" / "topologies" / (name + ".xml")).string());
}

/// All settings of one rank by name, with an empty environment and the given interface for sockets.
std::map<std::string, std::string> settings_of(const Topology& machine, int num_ranks, int rank,
                                               const std::string& socket_interface) {
  PlacementRequest request;
  request.num_ranks = num_ranks;
  SettingsOptions options;
  options.interface.name = socket_interface;
  std::map<std::string, std::string> values;
  for (const Setting& setting :
       derive_settings(machine, place(machine, request), rank, options, base::Environment{{}})) {
    EXPECT_FALSE(setting.by_user);
    EXPECT_THAT(setting.conflict, IsEmpty());
    values.emplace(setting.name, setting.value);
  }
  return values;
}

// Four switches with two GPUs and two NICs each. As on DGX A100, addresses do not ascend with NUMA nodes: the switch
// with the lowest addresses (04 to 07) is on node 1, then 44 to 47 on node 0, 84 to 87 on node 3, c4 to c7 on node 2.
// Each node has four cores: core i has the processors i and i + 16.
TEST(EightGpusFourSwitches, DevicesAreWhereTheirSwitchIs) {
  const Topology machine = load("eight-gpus-four-switches");
  EXPECT_EQ(inventory(machine), "2 packages, 4 NUMA nodes, 16 cores, 32 processors, 8 GPUs, 9 NICs");
  std::vector<int> nodes;
  for (const Gpu& gpu : machine.gpus()) nodes.push_back(gpu.locality.numa_node);
  EXPECT_THAT(nodes, ElementsAre(1, 1, 0, 0, 3, 3, 2, 2));
  EXPECT_EQ(distances_from(machine, 0), "X NVL NVL NVL NVL NVL NVL NVL");
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[7]), 450000);
  const auto by_pci = [&](std::size_t a, std::size_t b) {
    return words(distance(machine.gpus()[a].locality, machine.gpus()[b].locality));
  };
  EXPECT_EQ(by_pci(0, 1), "PIX");
  EXPECT_EQ(by_pci(0, 2), "SYS") << "the other node of the package";
  EXPECT_EQ(by_pci(0, 4), "SYS*");
  EXPECT_EQ(distance_to(machine, 0, "ib0"), "PIX");
  EXPECT_EQ(distance_to(machine, 0, "ib1"), "PIX");
  EXPECT_EQ(distance_to(machine, 0, "ib2"), "SYS");
  EXPECT_EQ(distance_to(machine, 2, "eno1"), "NODE") << "another host bridge of node 0";
  EXPECT_EQ(machine.gpus()[3].uuid, "GPU-30000000-0000-0000-0000-000000000003");
  EXPECT_EQ(machine.gpus()[3].model, "NVIDIA H100 80GB HBM3");
  EXPECT_FALSE(nic_named(machine, "eno1").fabric);
  EXPECT_EQ(nic_named(machine, "ib0").rate_gbps, 400);
}

TEST(EightGpusFourSwitches, EachRankHasItsOwnOfEverything) {
  // GPUs 0 and 1 are on node 1, whose cores are 4 to 7: two for each rank. Of the two NICs below the switch, each rank
  // has one.
  EXPECT_THAT(summaries(load("eight-gpus-four-switches"), 8),
              ElementsAre("GPU 0, ib0 (mlx5_0), 2 cores 4-5,20-21", "GPU 1, ib1 (mlx5_1), 2 cores 6-7,22-23",
                          "GPU 2, ib2 (mlx5_2), 2 cores 0-1,16-17", "GPU 3, ib3 (mlx5_3), 2 cores 2-3,18-19",
                          "GPU 4, ib4 (mlx5_4), 2 cores 12-13,28-29", "GPU 5, ib5 (mlx5_5), 2 cores 14-15,30-31",
                          "GPU 6, ib6 (mlx5_6), 2 cores 8-9,24-25", "GPU 7, ib7 (mlx5_7), 2 cores 10-11,26-27"));
}

TEST(EightGpusFourSwitches, FewerRanksAreSpread) {
  const Topology machine = load("eight-gpus-four-switches");
  // One a switch, with all four cores of the node.
  EXPECT_THAT(summaries(machine, 4),
              ElementsAre("GPU 0, ib0 (mlx5_0), 4 cores 4-7,20-23", "GPU 2, ib2 (mlx5_2), 4 cores 0-3,16-19",
                          "GPU 4, ib4 (mlx5_4), 4 cores 12-15,28-31", "GPU 6, ib6 (mlx5_6), 4 cores 8-11,24-27"));
  // One a package.
  EXPECT_THAT(summaries(machine, 2),
              ElementsAre("GPU 0, ib0 (mlx5_0), 4 cores 4-7,20-23", "GPU 4, ib4 (mlx5_4), 4 cores 12-15,28-31"));
}

TEST(EightGpusFourSwitches, MoreRanksShareGpusInPairs) {
  const auto lines = summaries(load("eight-gpus-four-switches"), 16);
  ASSERT_EQ(lines.size(), 16U);
  // Four ranks a node: one core each; four ranks for two NICs.
  EXPECT_THAT(lines[0], HasSubstr("GPU 0 shared"));
  EXPECT_THAT(lines[0], HasSubstr("1 core 4,20"));
  EXPECT_THAT(lines[1], HasSubstr("GPU 0 shared"));
  EXPECT_THAT(lines[1], HasSubstr("1 core 5,21"));
  EXPECT_THAT(lines[15], HasSubstr("GPU 7 shared"));
}

TEST(EightGpusFourSwitches, Settings) {
  const Topology machine = load("eight-gpus-four-switches");
  auto values = settings_of(machine, 8, 3, "ib3");
  // All rails for all ranks, but not the management network; the natural order of GPUs needs no list.
  EXPECT_EQ(values, (std::map<std::string, std::string>{
                        {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                        {"GLOO_SOCKET_IFNAME", "ib3"},
                        {"NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1"},
                        {"NCCL_SOCKET_IFNAME", "=ib3"},
                        {"OMP_NUM_THREADS", "2"},
                        {"OMP_PROC_BIND", "false"},
                        {"TP_SOCKET_IFNAME", "ib3"},
                        {"UCX_NET_DEVICES", "mlx5_3:1"}}));
  // Four ranks on GPUs 0, 2, 4 and 6: cuda:1 must be GPU 2 for torchrun's users.
  EXPECT_EQ(settings_of(machine, 4, 1, "ib2")["CUDA_VISIBLE_DEVICES"], "0,2,4,6,1,3,5,7");
}

// Two packages of four cores (processors i and i + 8), each with an InfiniBand NIC; eno1 is on the first.
TEST(DualRail, RanksUseTheRailOfTheirPackage) {
  const Topology machine = load("dual-rail");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 8 cores, 16 processors, 0 GPUs, 3 NICs");
  EXPECT_THAT(usable_nics(machine), ElementsAre("ib0 (mlx5_0)", "eno1", "ib1 (mlx5_1)"));
  EXPECT_THAT(summaries(machine, 2),
              ElementsAre("no GPU, ib0 (mlx5_0), 4 cores 0-3,8-11", "no GPU, ib1 (mlx5_1), 4 cores 4-7,12-15"));
  // Four ranks: two a package. eno1 is as near as ib0, and no reason to leave it.
  EXPECT_THAT(summaries(machine, 4),
              ElementsAre("no GPU, ib0 (mlx5_0), 2 cores 0-1,8-9", "no GPU, ib0 (mlx5_0), 2 cores 2-3,10-11",
                          "no GPU, ib1 (mlx5_1), 2 cores 4-5,12-13", "no GPU, ib1 (mlx5_1), 2 cores 6-7,14-15"));
}

TEST(DualRail, Policies) {
  const Topology machine = load("dual-rail");
  EXPECT_THAT(summaries(machine, 2, BindPolicy::core),
              ElementsAre("no GPU, ib0 (mlx5_0), 1 core 0,8", "no GPU, ib1 (mlx5_1), 1 core 4,12"));
  EXPECT_THAT(summaries(machine, 2, BindPolicy::socket),
              ElementsAre("no GPU, ib0 (mlx5_0), 4 cores 0-3,8-11", "no GPU, ib1 (mlx5_1), 4 cores 4-7,12-15"));
  PlacementRequest request;
  request.num_ranks = 2;
  request.policy = BindPolicy::none;
  for (const Placement& rank : place(machine, request)) EXPECT_EQ(rank.cpus.to_string(), "0-15");
}

TEST(DualRail, Settings) {
  EXPECT_EQ(settings_of(load("dual-rail"), 2, 1, "ib0"),
            (std::map<std::string, std::string>{{"GLOO_SOCKET_IFNAME", "ib0"},
                                                {"NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"},
                                                {"NCCL_SOCKET_IFNAME", "=ib0"},
                                                {"OMP_NUM_THREADS", "4"},
                                                {"OMP_PROC_BIND", "false"},
                                                {"TP_SOCKET_IFNAME", "ib0"},
                                                {"UCX_NET_DEVICES", "mlx5_1:1"}}));
}

// One adapter with four virtual functions that are up and have addresses: they share its cable, and are no rails.
TEST(Sriov, VirtualFunctionsAreNoRails) {
  const Topology machine = load("sriov");
  EXPECT_EQ(inventory(machine), "1 packages, 1 NUMA nodes, 4 cores, 8 processors, 0 GPUs, 5 NICs");
  EXPECT_THAT(usable_nics(machine), ElementsAre("ens1f0np0 (mlx5_0)"));
  const Nic& virtual_one = nic_named(machine, "mlx5_3");
  EXPECT_TRUE(virtual_one.virtual_function);
  EXPECT_THAT(virtual_one.unusable_reason, HasSubstr("virtual function"));
  EXPECT_FALSE(nic_named(machine, "mlx5_0").virtual_function);
  EXPECT_THAT(summaries(machine, 2), ElementsAre("no GPU, ens1f0np0 (mlx5_0), 2 cores 0-1,4-5",
                                                 "no GPU, ens1f0np0 (mlx5_0), 2 cores 2-3,6-7"));
  EXPECT_EQ(settings_of(machine, 2, 0, "ens1f0np0")["NCCL_IB_HCA"], "=mlx5_0:1");
  EXPECT_EQ(machine.interfaces().size(), 6U) << "lo and five others";
}

// Two ports joined: one NIC with the RDMA device of the bond. Its slaves carry no traffic of their own, and the VLAN is
// no adapter.
TEST(Bond, IsOneNic) {
  const Topology machine = load("bond");
  EXPECT_THAT(usable_nics(machine), ElementsAre("bond0 (mlx5_bond_0)"));
  const Nic& bond = nic_named(machine, "bond0");
  EXPECT_THAT(bond.bonded, UnorderedElementsAre("ens1f0np0", "ens1f1np1"));
  EXPECT_EQ(bond.rate_gbps, 200);
  EXPECT_TRUE(bond.fabric);
  EXPECT_EQ(bond.locality.numa_node, 0);
  EXPECT_THAT(nic_named(machine, "ens1f1np1").unusable_reason, HasSubstr("bond0"));
  EXPECT_THAT(summaries(machine, 1), ElementsAre("no GPU, bond0 (mlx5_bond_0), 4 cores 0-7"));
  const auto values = settings_of(machine, 1, 0, "bond0");
  EXPECT_EQ(values.at("NCCL_IB_HCA"), "=mlx5_bond_0:1");
  EXPECT_EQ(values.at("UCX_NET_DEVICES"), "mlx5_bond_0:1");
  EXPECT_EQ(values.at("NCCL_SOCKET_IFNAME"), "=bond0") << "exact: bond0 alone also means bond0.100";
}

// One package, four cores without hardware threads, one Ethernet interface.
TEST(NoGpu, RanksHaveCoresAndEthernet) {
  const Topology machine = load("no-gpu");
  EXPECT_EQ(inventory(machine), "1 packages, 1 NUMA nodes, 4 cores, 4 processors, 0 GPUs, 1 NICs");
  EXPECT_THAT(summaries(machine, 4), ElementsAre("no GPU, eno1, 1 core 0", "no GPU, eno1, 1 core 1",
                                                 "no GPU, eno1, 1 core 2", "no GPU, eno1, 1 core 3"));
  EXPECT_THAT(summaries(machine, 3)[0], HasSubstr("2 cores 0-1")) << "four cores for three ranks: 2, 1, 1";
  EXPECT_EQ(settings_of(machine, 4, 2, "eno1"), (std::map<std::string, std::string>{{"GLOO_SOCKET_IFNAME", "eno1"},
                                                                                    {"NCCL_SOCKET_IFNAME", "=eno1"},
                                                                                    {"OMP_NUM_THREADS", "1"},
                                                                                    {"OMP_PROC_BIND", "false"},
                                                                                    {"TP_SOCKET_IFNAME", "eno1"},
                                                                                    {"UCX_NET_DEVICES", "eno1"}}));
}

TEST(NoGpu, MoreRanksThanCoresShareThem) {
  const Topology machine = load("no-gpu");
  PlacementRequest request;
  request.num_ranks = 8;
  const auto placements = place(machine, request);
  for (const Placement& rank : placements) {
    EXPECT_TRUE(rank.cores_shared);
    EXPECT_FALSE(rank.cpus.empty());
  }
  EXPECT_EQ(settings_of(machine, 8, 0, "eno1")["OMP_NUM_THREADS"], "1");
}

// Three GPUs and the NIC on the first package (cores 0 to 5, processors i and i + 12), the fourth GPU on the second.
TEST(Asymmetric, CoresFollowTheGpus) {
  const Topology machine = load("asymmetric");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 12 cores, 24 processors, 4 GPUs, 1 NICs");
  EXPECT_EQ(distances_from(machine, 0), "X PHB NODE SYS*") << "11 and 12 on one host bridge, 21 on another";
  EXPECT_EQ(distance_to(machine, 0, "ib0"), "NODE");
  EXPECT_EQ(distance_to(machine, 3, "ib0"), "SYS*");
  // Three ranks share six cores, the fourth has six for itself; there is only one NIC.
  EXPECT_THAT(summaries(machine, 4),
              ElementsAre("GPU 0, ib0 (mlx5_0), 2 cores 0-1,12-13", "GPU 1, ib0 (mlx5_0), 2 cores 2-3,14-15",
                          "GPU 2, ib0 (mlx5_0), 2 cores 4-5,16-17", "GPU 3, ib0 (mlx5_0), 6 cores 6-11,18-23"));
  // Two ranks: one a package.
  EXPECT_THAT(summaries(machine, 2),
              ElementsAre("GPU 0, ib0 (mlx5_0), 6 cores 0-5,12-17", "GPU 3, ib0 (mlx5_0), 6 cores 6-11,18-23"));
  EXPECT_EQ(settings_of(machine, 2, 0, "ib0")["CUDA_VISIBLE_DEVICES"], "0,3,1,2");
  EXPECT_EQ(settings_of(machine, 4, 3, "ib0")["OMP_NUM_THREADS"], "6");
}

TEST(HandMade, ExportedMachinesReadTheSameAgain) {
  for (const char* name : {"eight-gpus-four-switches", "dual-rail", "sriov", "bond", "no-gpu", "asymmetric"}) {
    const Topology machine = load(name);
    const Topology again = Topology::from_xml(machine.to_xml());
    EXPECT_EQ(again.shape(), machine.shape()) << name;
    EXPECT_EQ(summaries(again, 3), summaries(machine, 3)) << name;
  }
}

}  // namespace
}  // namespace ddp::topology
