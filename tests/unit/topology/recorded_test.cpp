// Real machines, as lstopo or NCCL recorded them. Expectations are worked out from the recordings by hand; the
// reasoning stands beside them. The recordings are not part of the sources, and the tests are skipped where they are
// missing.
#include <ddp/topology.hpp>

#include "topology/placement/settings.hpp"
#include "unit/topology/machine_summary.hpp"

namespace ddp::topology {
namespace {

#define DDP_LOAD_RECORDED(machine, file)                                                               \
  const auto folder = recorded_machines();                                                             \
  if (!folder) GTEST_SKIP() << "no recorded machines: DDP_RECORDED_TOPOLOGIES does not name a folder"; \
  const Topology machine = Topology::from_xml_file((*folder / (file)).string())

/// The value of a variable for local rank 0 of @p num_ranks with an empty environment; "-" if it is not set.
std::string value_for(const Topology& machine, int num_ranks, std::string_view name) {
  PlacementRequest request;
  request.num_ranks = num_ranks;
  for (const Setting& setting : derive_settings(machine, place(machine, request), 0, {}, base::Environment{{}})) {
    if (setting.name == name) return setting.value;
  }
  return "-";
}

std::vector<int> gpus_of(const Topology& machine, int num_ranks) {
  PlacementRequest request;
  request.num_ranks = num_ranks;
  std::vector<int> gpus;
  for (const Placement& rank : place(machine, request)) gpus.push_back(rank.gpu.value_or(-1));
  return gpus;
}

/// How many ranks have each NIC as their own.
std::map<std::string, int> ranks_of_nics(const Topology& machine, int num_ranks) {
  PlacementRequest request;
  request.num_ranks = num_ranks;
  std::map<std::string, int> count;
  for (const Placement& rank : place(machine, request)) {
    ++count[rank.nics.empty() ? "none" : machine.nics().at(static_cast<std::size_t>(rank.nics[0])).name()];
  }
  return count;
}

// Frontier's node type: one EPYC with four NUMA nodes of 16 cores, each with two GPU dies and one Slingshot NIC. Each
// GPU has a host bridge of its own; every second one shares its host bridge with a NIC. GPU addresses do not ascend
// with NUMA nodes: c1 and c6 are on node 3, c9 and ce on 1, d1 and d6 on 0, d9 and de on 2.
TEST(Recorded, Frontier) {
  DDP_LOAD_RECORDED(machine, "frontier-ex235a-8mi250x.xml");
  // NICs: four Slingshot ones and one Ethernet adapter (94:00.0, ens2).
  EXPECT_EQ(inventory(machine), "1 packages, 4 NUMA nodes, 64 cores, 128 processors, 8 GPUs, 5 NICs");
  EXPECT_THAT(gpu_addresses(machine), ElementsAre("0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0", "0000:ce:00.0",
                                                  "0000:d1:00.0", "0000:d6:00.0", "0000:d9:00.0", "0000:de:00.0"));
  EXPECT_EQ(machine.gpus()[0].vendor, Vendor::amd);
  EXPECT_EQ(machine.gpus()[4].vendor_index, 4) << "rsmi4 is d1:00.0";
  EXPECT_EQ(machine.gpus()[0].locality.numa_node, 3);
  EXPECT_EQ(machine.gpus()[0].locality.cpus.to_string(), "48-55,112-119") << "of its L3 cache, not of the whole node";
  // XGMI connects all pairs, directly or not: hwloc's matrix has no zero outside the diagonal.
  EXPECT_EQ(distances_from(machine, 0), "X NVL NVL NVL NVL NVL NVL NVL");
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[1]), 100000);
  EXPECT_EQ(distance_to(machine, 1, "hsi0"), "PHB") << "c5 and c6 are below the host bridge of [c4-c6]";
  EXPECT_EQ(distance_to(machine, 0, "hsi0"), "NODE") << "c1 has the host bridge of [c0-c1]";
  EXPECT_EQ(distance_to(machine, 0, "hsi1"), "SYS") << "another NUMA node of the one package";
  // Two ranks share the 16 cores of their node, and its NIC: that of the other host bridge is nearer than any
  // elsewhere. The first of two gets the lower half of the cores, which is the part next to its GPU.
  EXPECT_THAT(summaries(machine, 8),
              ElementsAre("GPU 0, hsi0, 8 cores 48-55,112-119", "GPU 1, hsi0, 8 cores 56-63,120-127",
                          "GPU 2, hsi1, 8 cores 16-23,80-87", "GPU 3, hsi1, 8 cores 24-31,88-95",
                          "GPU 4, hsi2, 8 cores 0-7,64-71", "GPU 5, hsi2, 8 cores 8-15,72-79",
                          "GPU 6, hsi3, 8 cores 32-39,96-103", "GPU 7, hsi3, 8 cores 40-47,104-111"));
  // Four ranks are spread over the four NUMA nodes, so that none shares cores or a NIC.
  EXPECT_EQ(ranks_of_nics(machine, 4),
            (std::map<std::string, int>{{"hsi0", 1}, {"hsi1", 1}, {"hsi2", 1}, {"hsi3", 1}}));
  EXPECT_EQ(value_for(machine, 8, "NCCL_IB_HCA"), "-") << "Slingshot has no RDMA device";
  EXPECT_EQ(value_for(machine, 8, "ROCR_VISIBLE_DEVICES"), "-") << "the natural order fits";
}

// Lassen: two POWER9 with 20 cores of four threads, each with two V100 below one PCIe switch and one dual-port NIC on
// another host bridge. Processors 0-7 and 88-95 are not there.
TEST(Recorded, Lassen) {
  DDP_LOAD_RECORDED(machine, "lassen-4v100.xml");
  // NICs: four InfiniBand ports and two Ethernet ports (0005:01:00.*). 0002:02:00.0 is the console's VGA.
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 40 cores, 160 processors, 4 GPUs, 6 NICs");
  EXPECT_EQ(machine.numa_nodes()[1].os_index, 8);
  EXPECT_EQ(machine.gpus()[2].model, "Tesla V100-SXM2-16GB");
  EXPECT_EQ(machine.gpus()[2].uuid, "GPU-3e0871a1-dd1a-b447-40f2-86e6745c3206");
  // The recording has no NVLink matrix, so PCI decides. 0004:02:0a.0 and 0004:02:0b.0 are ports of one switch.
  EXPECT_EQ(distances_from(machine, 0), "X PIX SYS* SYS*");
  EXPECT_EQ(distance_to(machine, 0, "mlx5_0"), "NODE") << "host bridges 0004 and 0003";
  EXPECT_EQ(distance_to(machine, 0, "mlx5_2"), "SYS*");
  // Two ranks a package: 10 cores of 4 threads each, and each of the two equally near ports once.
  EXPECT_THAT(summaries(machine, 4),
              ElementsAre("GPU 0, hsi0 (mlx5_0), 10 cores 8-47", "GPU 1, hsi1 (mlx5_1), 10 cores 48-87",
                          "GPU 2, hsi2 (mlx5_2), 10 cores 96-135", "GPU 3, hsi3 (mlx5_3), 10 cores 136-175"));
  // Two ranks: one a package, with all of its cores.
  EXPECT_THAT(summaries(machine, 2),
              ElementsAre(AnyOf("GPU 0, hsi0 (mlx5_0), 20 cores 8-87", "GPU 1, hsi0 (mlx5_0), 20 cores 8-87"),
                          AnyOf("GPU 2, hsi2 (mlx5_2), 20 cores 96-175", "GPU 3, hsi2 (mlx5_2), 20 cores 96-175")));
  // Eight ranks: two a GPU, neighbours together, five cores each.
  EXPECT_EQ(gpus_of(machine, 8), (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(ranks_of_nics(machine, 8),
            (std::map<std::string, int>{
                {"hsi0 (mlx5_0)", 2}, {"hsi1 (mlx5_1)", 2}, {"hsi2 (mlx5_2)", 2}, {"hsi3 (mlx5_3)", 2}}));
  EXPECT_EQ(summaries(machine, 8)[7].substr(0, 12), "GPU 3 shared");
  // Ports are active, and the Ethernet ports have no RDMA device.
  EXPECT_EQ(value_for(machine, 4, "NCCL_IB_HCA"), "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1");
  EXPECT_EQ(value_for(machine, 4, "UCX_NET_DEVICES"), "mlx5_0:1");
  EXPECT_EQ(value_for(machine, 4, "OMP_NUM_THREADS"), "10");
}

// Summit: as Lassen with three GPUs and 21 usable cores a package.
TEST(Recorded, Summit) {
  DDP_LOAD_RECORDED(machine, "summit-6v100.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 42 cores, 168 processors, 6 GPUs, 6 NICs");
  EXPECT_EQ(distances_from(machine, 0), "X PIX PIX SYS* SYS* SYS*");
  EXPECT_EQ(distances_from(machine, 5), "SYS* SYS* SYS* PIX PIX X");
  EXPECT_EQ(distance_to(machine, 3, "ib2"), "NODE");
  // Three ranks a package: 7 cores of 4 threads each. Two ports for three ranks: one of them is used twice.
  const auto six = summaries(machine, 6);
  const std::vector<std::string> cores = {"0-27", "28-55", "56-83", "88-115", "116-143", "144-171"};
  for (std::size_t i = 0; i < six.size(); ++i) {
    const std::string rank = std::to_string(i);
    const auto line = [&](const std::string& nic) { return "GPU " + rank + ", " + nic + ", 7 cores " + cores[i]; };
    EXPECT_THAT(six[i], i < 3 ? AnyOf(line("ib0 (mlx5_0)"), line("ib1 (mlx5_1)"))
                              : AnyOf(line("ib2 (mlx5_2)"), line("ib3 (mlx5_3)")));
  }
  for (const auto& [nic, ranks] : ranks_of_nics(machine, 6)) EXPECT_LE(ranks, 2) << nic;
  EXPECT_EQ(ranks_of_nics(machine, 6).size(), 4U);
  // Four ranks: two a package, each with a port of its own; ten or eleven of the 21 cores.
  EXPECT_EQ(
      ranks_of_nics(machine, 4),
      (std::map<std::string, int>{{"ib0 (mlx5_0)", 1}, {"ib1 (mlx5_1)", 1}, {"ib2 (mlx5_2)", 1}, {"ib3 (mlx5_3)", 1}}));
  const auto four = gpus_of(machine, 4);
  EXPECT_LT(four[1], 3);
  EXPECT_GE(four[2], 3);
}

// DGX-2, reduced to four cores and without NICs: eight GPUs a package below two host bridges each, in pairs below PCIe
// switches, all connected by NVSwitches. A pair has a switch of its own (32:00.0), and two pairs one above it
// (2c:00.0).
TEST(Recorded, Dgx2) {
  DDP_LOAD_RECORDED(machine, "dgx2-16v100.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 4 cores, 4 processors, 16 GPUs, 0 NICs");
  // NVSwitch connects all of them: each GPU has a link of 25 GB/s to each of six switches.
  EXPECT_EQ(distances_from(machine, 0), "X NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL NVL");
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[7]), 150000);
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[15]), 150000);
  const auto by_pci = [&](std::size_t other) {
    return words(distance(machine.gpus()[0].locality, machine.gpus()[other].locality));
  };
  EXPECT_EQ(by_pci(1), "PIX") << "34 and 36 are below 32:00.0";
  EXPECT_EQ(by_pci(2), "PXB") << "39 is below 37:00.0; the switch above both is 2c:00.0";
  EXPECT_EQ(by_pci(4), "NODE") << "57 is below another host bridge of node 0";
  EXPECT_EQ(by_pci(8), "SYS*");
  // Eight ranks share the two cores of their package.
  const auto all = summaries(machine, 16);
  ASSERT_EQ(all.size(), 16U);
  EXPECT_EQ(all[0].substr(0, 14), "GPU 0, no NIC,");
  PlacementRequest request;
  request.num_ranks = 16;
  for (const Placement& rank : place(machine, request)) {
    EXPECT_EQ(rank.gpu, rank.local_rank);
    EXPECT_FALSE(rank.gpu_shared);
    EXPECT_TRUE(rank.cores_shared);
    EXPECT_TRUE(CpuSet::parse(rank.local_rank < 8 ? "0-1" : "24-25").contains(rank.cpus)) << rank.cpus.to_string();
  }
  // Four ranks: one for each of the four host bridges, and a core for each.
  EXPECT_EQ(gpus_of(machine, 4), (std::vector<int>{0, 4, 8, 12}));
  EXPECT_THAT(summaries(machine, 4), ElementsAre("GPU 0, no NIC, 1 core 0", "GPU 4, no NIC, 1 core 1",
                                                 "GPU 8, no NIC, 1 core 24", "GPU 12, no NIC, 1 core 25"));
  EXPECT_EQ(value_for(machine, 4, "CUDA_VISIBLE_DEVICES"), "0,4,8,12,1,2,3,5,6,7,9,10,11,13,14,15")
      << "local rank i is GPU i, and the rest follows";
  EXPECT_EQ(value_for(machine, 16, "CUDA_VISIBLE_DEVICES"), "-");
}

// AWS g4dn.metal: pairs of T4 on root ports of one host bridge, two such bridges a package. EFA and Ethernet are on the
// second package, below another host bridge.
TEST(Recorded, EightT4) {
  DDP_LOAD_RECORDED(machine, "aws-g4dn-metal-8t4.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 48 cores, 96 processors, 8 GPUs, 2 NICs");
  EXPECT_EQ(distances_from(machine, 0), "X PHB NODE NODE SYS* SYS* SYS* SYS*");
  EXPECT_EQ(distances_from(machine, 7), "SYS* SYS* SYS* SYS* NODE NODE PHB X");
  EXPECT_EQ(distance_to(machine, 4, "rdmap197s0"), "NODE");
  EXPECT_EQ(distance_to(machine, 0, "rdmap197s0"), "SYS*");
  EXPECT_TRUE(nic_named(machine, "rdmap197s0").fabric);
  EXPECT_FALSE(nic_named(machine, "eth0").fabric);
  // Four ranks a package with 24 cores. EFA is the only NIC made for clusters; eth0 is no alternative to it.
  EXPECT_THAT(summaries(machine, 8),
              ElementsAre("GPU 0, rdmap197s0, 6 cores 0-5,48-53", "GPU 1, rdmap197s0, 6 cores 6-11,54-59",
                          "GPU 2, rdmap197s0, 6 cores 12-17,60-65", "GPU 3, rdmap197s0, 6 cores 18-23,66-71",
                          "GPU 4, rdmap197s0, 6 cores 24-29,72-77", "GPU 5, rdmap197s0, 6 cores 30-35,78-83",
                          "GPU 6, rdmap197s0, 6 cores 36-41,84-89", "GPU 7, rdmap197s0, 6 cores 42-47,90-95"));
  // Four ranks: one for each host bridge with GPUs.
  EXPECT_EQ(gpus_of(machine, 4), (std::vector<int>{0, 2, 4, 6}));
  // Three ranks: two on one package, one on the other.
  const auto three = gpus_of(machine, 3);
  EXPECT_LT(three[0], 4);
  EXPECT_GE(three[2], 4);
}

// Two EPYC 9555 with four NUMA nodes of 16 cores each; four of the eight nodes have an H200 and a ConnectX-7. Recorded
// without NVML. Ports of mlx5_0, mlx5_1, mlx5_2 and mlx5_3 are down (Port1State 1), those of mlx5_4 and mlx5_5 active.
TEST(Recorded, FourH200) {
  DDP_LOAD_RECORDED(machine, "turin-4h200-plain.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 8 NUMA nodes, 128 cores, 256 processors, 4 GPUs, 7 NICs");
  EXPECT_THAT(usable_nics(machine), ElementsAre("eno6", "ib1x (mlx5_4)", "ib0 (mlx5_5)"));
  // Nodes 1 and 2 are on package 0, nodes 6 and 7 on package 1. NVLink was not recorded.
  EXPECT_EQ(distances_from(machine, 0), "X SYS SYS* SYS*");
  EXPECT_EQ(distances_from(machine, 3), "SYS* SYS* SYS X");
  // The NIC hangs on a port of the switch at 91:00.0; the GPU is below a second switch (94:00.0) on another port.
  EXPECT_EQ(distance_to(machine, 2, "mlx5_4"), "PXB");
  EXPECT_EQ(distance_to(machine, 0, "mlx5_0"), "PXB");
  EXPECT_EQ(distance_to(machine, 0, "eno6"), "SYS") << "node 0 of the same package";
  // Ranks 2 and 3 have a NIC below their own switch. Those of ranks 0 and 1 are down, so that they take the others',
  // one each, and not the Ethernet port that is nearer.
  const auto four = summaries(machine, 4);
  ASSERT_EQ(four.size(), 4U);
  EXPECT_THAT(four[0],
              AnyOf("GPU 0, ib1x (mlx5_4), 16 cores 16-31,144-159", "GPU 0, ib0 (mlx5_5), 16 cores 16-31,144-159"));
  EXPECT_THAT(four[1],
              AnyOf("GPU 1, ib1x (mlx5_4), 16 cores 32-47,160-175", "GPU 1, ib0 (mlx5_5), 16 cores 32-47,160-175"));
  EXPECT_EQ(four[2], "GPU 2, ib1x (mlx5_4), 16 cores 96-111,224-239");
  EXPECT_EQ(four[3], "GPU 3, ib0 (mlx5_5), 16 cores 112-127,240-255");
  EXPECT_EQ(ranks_of_nics(machine, 4), (std::map<std::string, int>{{"ib1x (mlx5_4)", 2}, {"ib0 (mlx5_5)", 2}}));
  // Two ranks a GPU: each half of the node's cores.
  EXPECT_EQ(summaries(machine, 8)[1].substr(0, 14), "GPU 0 shared, ");
  PlacementRequest request;
  request.num_ranks = 8;
  EXPECT_EQ(place(machine, request)[1].cpus.to_string(), "24-31,152-159");
  // Two ranks: one a package.
  EXPECT_LT(gpus_of(machine, 2)[0], 2);
  EXPECT_GE(gpus_of(machine, 2)[1], 2);
  EXPECT_EQ(value_for(machine, 4, "NCCL_IB_HCA"), "=mlx5_4:1,mlx5_5:1");
  // All ports of the package: 64 cores for two ranks.
  request.num_ranks = 4;
  request.policy = BindPolicy::socket;
  EXPECT_EQ(place(machine, request)[0].num_cores, 32);
}

// Corona, with four MI50 in the recording (Vega 20 at 13, 23, 53 and 73), on NUMA nodes 1, 2, 5 and 7 of eight with six
// cores each. The one InfiniBand NIC is on node 3; the Ethernet ports on node 0 have 1 Gbit/s.
TEST(Recorded, Corona) {
  DDP_LOAD_RECORDED(machine, "corona-8mi50.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 8 NUMA nodes, 48 cores, 96 processors, 4 GPUs, 3 NICs");
  EXPECT_EQ(machine.gpus()[0].vendor, Vendor::amd);
  EXPECT_EQ(distances_from(machine, 0), "X SYS SYS* SYS*");
  EXPECT_EQ(distance_to(machine, 0, "mlx5_0"), "SYS");
  EXPECT_EQ(distance_to(machine, 2, "mlx5_0"), "SYS*");
  EXPECT_THAT(summaries(machine, 4),
              ElementsAre("GPU 0, hsi0 (mlx5_0), 6 cores 6-11,54-59", "GPU 1, hsi0 (mlx5_0), 6 cores 12-17,60-65",
                          "GPU 2, hsi0 (mlx5_0), 6 cores 30-35,78-83", "GPU 3, hsi0 (mlx5_0), 6 cores 42-47,90-95"));
  EXPECT_EQ(summaries(machine, 8)[0], "GPU 0 shared, hsi0 (mlx5_0), 3 cores 6-8,54-56");
  EXPECT_EQ(value_for(machine, 4, "NCCL_IB_HCA"), "=mlx5_0:1");
  EXPECT_EQ(value_for(machine, 4, "CUDA_DEVICE_ORDER"), "-");
}

// Two P100 and the NIC below one PCIe switch (02:00.0) of the first package.
TEST(Recorded, Pascal) {
  DDP_LOAD_RECORDED(machine, "pascal-2p100.xml");
  EXPECT_EQ(inventory(machine), "2 packages, 2 NUMA nodes, 36 cores, 72 processors, 2 GPUs, 3 NICs");
  EXPECT_EQ(distances_from(machine, 0), "X PIX");
  EXPECT_EQ(distance_to(machine, 0, "mlx5_0"), "PIX");
  EXPECT_EQ(distance_to(machine, 0, "enp12s0f0"), "PHB") << "another root port of the same host bridge";
  // Both ranks belong to the first package, and halve its 18 cores.
  EXPECT_THAT(summaries(machine, 2),
              ElementsAre("GPU 0, hsi0 (mlx5_0), 9 cores 0-8,36-44", "GPU 1, hsi0 (mlx5_0), 9 cores 9-17,45-53"));
  EXPECT_THAT(summaries(machine, 1), ElementsAre("GPU 0, hsi0 (mlx5_0), 18 cores 0-17,36-53"));
  // 18 cores for four ranks: 5, 5, 4, 4.
  EXPECT_THAT(summaries(machine, 4), ElementsAre("GPU 0 shared, hsi0 (mlx5_0), 5 cores 0-4,36-40",
                                                 "GPU 0 shared, hsi0 (mlx5_0), 5 cores 5-9,41-45",
                                                 "GPU 1 shared, hsi0 (mlx5_0), 4 cores 10-13,46-49",
                                                 "GPU 1 shared, hsi0 (mlx5_0), 4 cores 14-17,50-53"));
}

// Azure NDv4: four NUMA nodes of 24 processors, each with a switch, two A100 and two InfiniBand NICs. By address, the
// GPUs of node 1 (0001, 0002) come before those of node 0 (0003, 0004), those of node 3 (000b, 000c) before those of
// node 2; and the NICs are in the same order (0101 and 0102 on node 1, ...). So NIC i is next to GPU i.
TEST(Recorded, NcclNdv4) {
  DDP_LOAD_RECORDED(machine, "nccl-ndv4-8a100.xml");
  EXPECT_EQ(inventory(machine), "0 packages, 4 NUMA nodes, 96 cores, 96 processors, 8 GPUs, 8 NICs");
  EXPECT_THAT(gpu_addresses(machine), ElementsAre("0001:00:00.0", "0002:00:00.0", "0003:00:00.0", "0004:00:00.0",
                                                  "000b:00:00.0", "000c:00:00.0", "000d:00:00.0", "000e:00:00.0"));
  EXPECT_EQ(machine.gpus()[0].vendor, Vendor::nvidia) << "the file names no vendor";
  EXPECT_EQ(distances_from(machine, 0), "X PIX SYS* SYS* SYS* SYS* SYS* SYS*");
  EXPECT_EQ(machine.nics()[4].pci->to_string(), "0105:00:00.0");
  EXPECT_EQ(distance_to(machine, 4, "nic4"), "PIX");
  EXPECT_EQ(distance_to(machine, 4, "nic5"), "PIX");
  EXPECT_EQ(distance_to(machine, 4, "nic6"), "SYS*");
  EXPECT_THAT(summaries(machine, 8),
              ElementsAre("GPU 0, nic0, 12 cores 24-35", "GPU 1, nic1, 12 cores 36-47", "GPU 2, nic2, 12 cores 0-11",
                          "GPU 3, nic3, 12 cores 12-23", "GPU 4, nic4, 12 cores 72-83", "GPU 5, nic5, 12 cores 84-95",
                          "GPU 6, nic6, 12 cores 48-59", "GPU 7, nic7, 12 cores 60-71"));
  // Four ranks: one a NUMA node, with all of its cores.
  const auto four = gpus_of(machine, 4);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(four[i] / 2, static_cast<int>(i));
  EXPECT_EQ(value_for(machine, 8, "NCCL_IB_HCA"), "-") << "the file knows no names of RDMA devices";
  EXPECT_EQ(value_for(machine, 8, "UCX_NET_DEVICES"), "-");
}

// AWS p4d: two NUMA nodes with 48 processors each (0-23,48-71 and 24-47,72-95), each with two switches of two A100 and
// one EFA.
TEST(Recorded, NcclP4d) {
  DDP_LOAD_RECORDED(machine, "nccl-p4d-8a100.xml");
  EXPECT_EQ(inventory(machine), "0 packages, 2 NUMA nodes, 96 cores, 96 processors, 8 GPUs, 4 NICs");
  EXPECT_EQ(machine.numa_nodes()[0].cpus.to_string(), "0-23,48-71");
  EXPECT_EQ(machine.gpus()[3].pci.to_string(), "0000:20:1d.0");
  EXPECT_EQ(machine.gpus()[3].model, "10de:20b0");
  EXPECT_EQ(machine.nics()[1].model, "1d0f:efa0");
  EXPECT_EQ(distances_from(machine, 0), "X PIX PHB PHB SYS* SYS* SYS* SYS*");
  EXPECT_EQ(distance_to(machine, 2, "nic1"), "PIX");
  EXPECT_EQ(distance_to(machine, 2, "nic0"), "PHB");
  EXPECT_EQ(distance_to(machine, 2, "nic2"), "SYS*");
  // A quarter of the processors of the node each, in their order; the file does not say which two are of one core.
  EXPECT_THAT(summaries(machine, 8),
              ElementsAre("GPU 0, nic0, 12 cores 0-11", "GPU 1, nic0, 12 cores 12-23", "GPU 2, nic1, 12 cores 48-59",
                          "GPU 3, nic1, 12 cores 60-71", "GPU 4, nic2, 12 cores 24-35", "GPU 5, nic2, 12 cores 36-47",
                          "GPU 6, nic3, 12 cores 72-83", "GPU 7, nic3, 12 cores 84-95"));
  // Four ranks: one a switch, and a NIC for each.
  EXPECT_EQ(gpus_of(machine, 4), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(ranks_of_nics(machine, 4),
            (std::map<std::string, int>{{"nic0", 1}, {"nic1", 1}, {"nic2", 1}, {"nic3", 1}}));
  EXPECT_THAT(machine.packages(), IsEmpty());
}

}  // namespace
}  // namespace ddp::topology
