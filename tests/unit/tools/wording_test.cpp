// Lists, models and machines in the words that users read.
#include "topo/wording.hpp"

#include <gtest/gtest.h>

#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

TEST(Wording, NumberLists) {
  EXPECT_EQ(number_list({}), "");
  EXPECT_EQ(number_list({5}), "5");
  EXPECT_EQ(number_list({3, 1, 0, 2, 8, 8}), "0-3,8");
  EXPECT_EQ(number_list({0, 1}), "0-1");
  EXPECT_EQ(number_list({0, 8, 16, 24}), "0-24:8");
  EXPECT_EQ(number_list({0, 8, 16}), "0,8,16");
  EXPECT_EQ(number_list({0, 2, 3, 4}), "0,2-4");
  EXPECT_EQ(number_list({1, 4, 7, 10, 11, 12}), "1-10:3,11-12");
}

TEST(Wording, HostLists) {
  EXPECT_EQ(host_list({}), "");
  EXPECT_EQ(host_list({"login"}), "login");
  EXPECT_EQ(host_list({"node1", "node3", "node2", "node7"}), "node[1-3,7]");
  EXPECT_EQ(host_list({"n08", "n09", "n10", "x1"}), "n[08-10],x1");
  EXPECT_EQ(host_list({"n9", "n10"}), "n[9-10]");
  EXPECT_EQ(host_list({"n9", "n010"}), "n[9,010]");
  EXPECT_EQ(host_list({"a1.b2.org", "a2.b2.org", "a1.c"}), "a[1-2].b2.org,a1.c");
  EXPECT_EQ(host_list({"same", "same"}), "same,same");
  EXPECT_EQ(host_list({"h99999999999999999998", "h99999999999999999999"}), "h99999999999[999999998-999999999]");
}

TEST(Wording, ModelsWithoutVendorAndChip) {
  EXPECT_EQ(short_model("NVIDIA H200"), "H200");
  EXPECT_EQ(short_model("GA100 [A100 SXM4 40GB]"), "A100 SXM4 40GB");
  EXPECT_EQ(short_model("NVIDIA Tesla V100"), "V100");
  EXPECT_EQ(short_model("10de:2335"), "10de:2335");
  EXPECT_EQ(short_model("AMD "), "AMD ");
  EXPECT_EQ(short_model("[]"), "[]");
}

TEST(Wording, Quantities) {
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(0, "GPU"), "0 GPUs");
  EXPECT_EQ(rate_text(400), "400 Gbit/s");
  EXPECT_EQ(rate_text(0.1), "0.1 Gbit/s");
  EXPECT_EQ(rate_text(0), "unknown rate");
  EXPECT_EQ(memory_text(256ULL << 30U), "256 GiB");
  EXPECT_EQ(memory_text(512ULL << 20U), "512 MiB");
}

TEST(Wording, MachineSummaries) {
  const Topology topology = test::two_packages();
  EXPECT_EQ(machine_summary(topology), "2 packages, 2 NUMA nodes, 8 cores, 16 PUs");
  EXPECT_EQ(gpu_summary(topology), "4x NVIDIA H200");
  EXPECT_EQ(nic_summary(topology), "2x ConnectX-7 400 Gbit/s, 1 not usable");
  EXPECT_EQ(gpu_summary(test::four_cores()), "");
  EXPECT_EQ(nic_summary(test::four_cores()), "");
  EXPECT_EQ(machine_summary(test::four_cores()), "1 package, 1 NUMA node, 4 cores, 4 PUs");
}

TEST(Wording, PathIsFromTheGpuElseFromTheNumaNode) {
  const Topology topology = test::two_packages();
  Placement placement = test::sample_row(1).placement;
  EXPECT_EQ(path_word(topology, placement), "PIX");
  placement.nics = {2};
  EXPECT_EQ(path_word(topology, placement), "SYS");
  placement.gpu.reset();
  EXPECT_EQ(path_word(topology, placement), "SYS");
  placement.nics = {0};
  EXPECT_EQ(path_word(topology, placement), "PHB");
  placement.numa_nodes.clear();
  EXPECT_EQ(path_word(topology, placement), "-");
  placement.nics.clear();
  EXPECT_EQ(path_word(topology, placement), "-");
}

TEST(Wording, NumaNodesByTheirSystemNumbers) {
  Topology::Parts parts = test::two_package_parts();
  parts.numa_nodes[1].os_index = 8;
  const Topology topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(numa_list(topology, {0, 1}), "0,8");
  EXPECT_EQ(numa_list(topology, {}), "-");
}

}  // namespace
}  // namespace ddp::tools
