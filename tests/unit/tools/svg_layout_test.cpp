// Boxes lie inside their parents and beside each other, whatever the machine.
#include "topo/svg_layout.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "unit/tools/picture_checks.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;

/// A machine with as many of everything as the largest nodes have, and things of unknown place.
Report crowded_report(int num_ranks) {
  Topology::Parts parts;
  parts.source = "a very large machine with a name that is longer than anything that fits";
  for (int package = 0; package < 4; ++package)
    parts.packages.push_back({.os_index = package, .cpus = CpuSet{{package}}});
  for (int node = 0; node < 18; ++node) {
    const int package = node < 16 ? node / 4 : -1;
    parts.numa_nodes.push_back({.os_index = node, .package = package, .memory_bytes = 1ULL << 30U});
    for (int core = 0; core < (node < 16 ? 24 : 0); ++core) {
      parts.cores.push_back({.numa_node = node, .package = package, .cpus = CpuSet{{node * 24 + core}}});
    }
  }
  parts.cores.push_back({.numa_node = -1, .package = 2, .cpus = CpuSet{{1000}}});
  parts.cores.push_back({.numa_node = -1, .package = -1, .cpus = CpuSet{{1001}}});
  for (int i = 0; i < 16; ++i) {
    Gpu gpu;
    gpu.index = i;
    gpu.model = "A model with an extraordinarily long name";
    gpu.visible = i != 3;
    gpu.hidden_reason = i == 3 ? "no permission" : "";
    gpu.locality.numa_node = i == 15 ? -1 : i;
    gpu.locality.package = i == 15 ? -1 : i / 4;
    parts.gpus.push_back(gpu);
    Nic nic;
    nic.index = i;
    nic.rdma_device = "mlx5_with_a_very_long_name_" + std::to_string(i);
    nic.usable = i != 4;
    nic.virtual_function = i == 5;
    if (i == 6) nic.virtual_function = !(nic.usable = false);
    nic.locality = gpu.locality;
    parts.nics.push_back(nic);
  }
  Report report;
  NodeKind kind{.topology = Topology::from_parts(std::move(parts))};
  kind.allowed = kind.topology.cpus() - CpuSet{{0}};
  for (int local_rank = 0; local_rank < num_ranks; ++local_rank) {
    RankRow row;
    row.local_rank = local_rank;
    row.ranks = {{.rank = local_rank, .host = ""}};
    row.placement.gpu = local_rank % 16;
    row.placement.nics = {local_rank % 3};
    row.placement.numa_nodes = {local_rank % 16};
    row.placement.cpus = CpuSet{{local_rank % 384}};
    row.placement.num_cores = 1;
    kind.rows.push_back(row);
  }
  report.kinds.push_back(std::move(kind));
  return report;
}

TEST(SvgLayout, NothingOverlapsOnASmallMachine) { test::check_boxes(lay_out(test::sample_report())); }
TEST(SvgLayout, NothingOverlapsInAJobOfSeveralKinds) {
  Report report = test::sample_job();
  report.kinds.push_back(crowded_report(8).kinds.front());
  test::check_boxes(lay_out(report));
}
TEST(SvgLayout, NothingOverlapsOnALargeMachine) {
  for (const int num_ranks : {1, 16, 64, 65, 1200}) test::check_boxes(lay_out(crowded_report(num_ranks)));
}

TEST(SvgLayout, EverythingIsThereOnce) {
  const Report report = crowded_report(16);
  const Picture picture = lay_out(report);
  EXPECT_EQ(test::count(picture, BoxKind::machine), 1);
  EXPECT_EQ(test::count(picture, BoxKind::package), 4);
  EXPECT_EQ(test::count(picture, BoxKind::core), 16 * 24 + 2);
  EXPECT_EQ(test::count(picture, BoxKind::gpu), 16);
  EXPECT_EQ(test::count(picture, BoxKind::nic), 15) << "but for the virtual function that cannot be used";
  EXPECT_EQ(test::count(picture, BoxKind::numa), 18 + 2) << "and a place for what is near to several, or unknown";
  EXPECT_EQ(test::count(picture, BoxKind::legend), 1);
}

TEST(SvgLayout, CoresHaveTheColourAndNumberOfTheirRank) {
  const Picture picture = lay_out(test::sample_report());
  std::vector<int> ranks;
  test::for_each_box(picture, [&](const Box& box) {
    if (box.kind != BoxKind::core) return;
    ranks.push_back(box.local_rank);
    ASSERT_EQ(box.lines.size(), 1U);
    EXPECT_EQ(box.lines[0].text, std::to_string(box.local_rank));
  });
  EXPECT_THAT(ranks, testing::ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
}

TEST(SvgLayout, SharedCoresAndDevicesSaySo) {
  Report report = test::sample_report();
  for (RankRow& row : report.kinds[0].rows) {
    row.placement.cpus = CpuSet{{0}};
    row.placement.gpu = 0;
  }
  std::vector<std::string> labels;
  test::for_each_box(lay_out(report), [&](const Box& box) {
    if (box.kind == BoxKind::core && box.local_rank >= 0) labels.push_back(box.lines.at(0).text);
    if (box.kind == BoxKind::gpu) {
      for (const Box& swatch : box.children) labels.push_back(swatch.lines.at(0).text);
    }
  });
  EXPECT_THAT(labels, testing::ElementsAre("0+", "2+", "1", "0"));
}

TEST(SvgLayout, WhatMayNotBeUsedIsMarked) {
  int cores = 0;
  int gpus = 0;
  int nics = 0;
  test::for_each_box(lay_out(crowded_report(1)), [&](const Box& box) {
    if (box.available) return;
    cores += box.kind == BoxKind::core ? 1 : 0;
    gpus += box.kind == BoxKind::gpu ? 1 : 0;
    nics += box.kind == BoxKind::nic ? 1 : 0;
  });
  EXPECT_EQ(cores, 1);
  EXPECT_EQ(gpus, 1);
  EXPECT_EQ(nics, 1);
}

TEST(SvgLayout, TheLegendGroupsRanksByNumaNode) {
  const Picture picture = lay_out(test::sample_job());
  const Box& legend = picture.boxes.back();
  ASSERT_EQ(legend.kind, BoxKind::legend);
  std::vector<std::string> texts;
  for (const TextLine& line : legend.lines) texts.push_back(line.text);
  EXPECT_THAT(texts, testing::ElementsAre("NUMA node 0", "ranks 0,4,8 (local 0): GPU 0, ib0 (mlx5_0), 2 cores",
                                          "ranks 1,5,9 (local 1): GPU 1, ib0 (mlx5_0), 2 cores", "NUMA node 1",
                                          "ranks 2,6,10 (local 2): GPU 2, ib1 (mlx5_1), 2 cores",
                                          "ranks 3,7,11 (local 3): GPU 3, ib1 (mlx5_1), 2 cores"));
  EXPECT_EQ(legend.children.size(), 4U);
}

TEST(SvgLayout, RanksOfAMachineAreCountedAsOne) {
  const Box legend = lay_out(test::sample_report()).boxes.back();
  EXPECT_EQ(legend.lines.at(1).text, "rank 0: GPU 0, ib0 (mlx5_0), 2 cores");
}

TEST(SvgLayout, TextsAreCutWhereTheyDoNotFit) {
  EXPECT_EQ(clipped("short", 1000, 12, true), "short");
  const std::string cut = clipped(std::string(100, 'x'), 100, 12, false);
  EXPECT_TRUE(cut.ends_with("x..."));
  EXPECT_LE(text_width(cut, 12, false), 100);
  EXPECT_EQ(clipped("abc", 0, 12, false), "a...");
}

TEST(SvgLayout, TooManyRanksForTheLegendAreCounted) {
  const Picture picture = lay_out(crowded_report(65));
  const Box& legend = picture.boxes.back();
  EXPECT_TRUE(legend.children.empty());
  EXPECT_EQ(legend.lines.size(), 16U);
  EXPECT_EQ(legend.lines[0].text, "NUMA node 0: ranks 0-64:16");
}

}  // namespace
}  // namespace ddp::tools
