// What ranks have beside what they should have, and which nodes are alike.
#include <gmock/gmock.h>

#include "topo/report_model.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using topology::GpuVisibility;

/// A node of two_packages() whose @p num_ranks ranks may use everything and have nothing set.
NodeReports node(int first_rank, int num_ranks = 4) {
  NodeReports reports{.topology = test::two_packages()};
  for (int i = 0; i < num_ranks; ++i) {
    RankReport report;
    report.rank = first_rank + i;
    report.local_rank = i;
    report.host = "n" + std::to_string(first_rank);
    report.given = reports.topology.cpus();
    report.binding.cpus = report.given;
    report.visible_gpus = {0, 1, 2, 3};
    report.interface = {"ib0", "10.0.0.1", "it routes to n" + std::to_string(first_rank + 1)};
    reports.ranks.push_back(report);
  }
  return reports;
}

/// Gives each rank the mask at which a free choice would put it.
void bind_as_placed(NodeReports& reports) {
  PlacementRequest request;
  request.num_ranks = static_cast<int>(reports.ranks.size());
  const auto placements = place(reports.topology, request);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    reports.ranks[i].given = reports.ranks[i].binding.cpus = placements[i].cpus;
  }
}

Report describe(const std::vector<NodeReports>& nodes, BindPolicy policy = BindPolicy::numa) {
  int world_size = 0;
  for (const NodeReports& each : nodes) world_size += static_cast<int>(each.ranks.size());
  return describe_job(nodes, {.launcher = "pmix", .reason = "", .world_size = world_size}, policy, GpuVisibility::all);
}

const SettingRow* find_setting(const RankRow& row, std::string_view name) {
  const auto found = std::find_if(row.settings.begin(), row.settings.end(),
                                  [&](const SettingRow& setting) { return setting.name == name; });
  return found == row.settings.end() ? nullptr : &*found;
}

TEST(DescribeJob, EqualNodesAreFolded) {
  const Report report = describe({node(0), node(4), node(8)});
  ASSERT_EQ(report.kinds.size(), 1U);
  EXPECT_THAT(report.kinds[0].hosts, ElementsAre("n0", "n4", "n8"));
  EXPECT_EQ(report.kinds[0].ranks().size(), 12U);
  ASSERT_EQ(report.kinds[0].rows[2].ranks.size(), 3U);
  EXPECT_EQ(report.kinds[0].rows[2].ranks[1].rank, 6);
  EXPECT_EQ(report.kinds[0].rows[2].ranks[1].interface.reason, "it routes to n5");
}

TEST(DescribeJob, AnyDifferenceKeepsNodesApart) {
  NodeReports other = node(4);
  other.ranks[3].binding.cpus = CpuSet{{0}};
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
  other = node(4);
  other.ranks[0].environment["OMP_NUM_THREADS"] = "3";
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
  EXPECT_EQ(describe({node(0), node(4, 2)}).kinds.size(), 2U);
  other = node(4);
  Topology::Parts parts = test::two_package_parts();
  parts.nics[0].usable = false;
  other.topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
}

TEST(DescribeJob, KindsAreOrderedByTheirFirstRank) {
  NodeReports first = node(0, 2);
  const Report report = describe({node(2), first, node(6)});
  ASSERT_EQ(report.kinds.size(), 2U);
  EXPECT_EQ(report.kinds[0].ranks().front(), 0);
}

TEST(DescribeJob, SaysWhetherRanksAreBound) {
  NodeReports bound = node(0);
  bind_as_placed(bound);
  const Report bound_report = describe({bound});
  for (const RankRow& row : bound_report.kinds[0].rows) {
    EXPECT_EQ(row.actual->state, BindingState::as_placed);
    EXPECT_EQ(row.actual->sentence, "bound as placed");
  }
  const Report free_report = describe({node(0)});
  for (const RankRow& row : free_report.kinds[0].rows) EXPECT_EQ(row.actual->state, BindingState::not_bound);
  const Report unasked = describe({node(0)}, BindPolicy::none);
  for (const RankRow& row : unasked.kinds[0].rows) EXPECT_EQ(row.actual->sentence, "not bound, as asked");
}

TEST(DescribeJob, SaysThatTheLauncherGaveFewerOrFartherCores) {
  NodeReports reports = node(0);
  bind_as_placed(reports);
  const auto give = [&](std::size_t rank, const CpuSet& mask) {
    reports.ranks[rank].given = reports.ranks[rank].binding.cpus = mask;
  };
  give(0, reports.topology.numa_nodes()[0].cpus);
  give(1, CpuSet{{3}});
  give(2, CpuSet{{0, 1, 8, 9}});
  give(3, reports.topology.numa_nodes()[1].cpus);
  const Report report = describe({reports});
  const auto& rows = report.kinds[0].rows;
  EXPECT_EQ(rows[1].actual->state, BindingState::narrower);
  EXPECT_EQ(rows[1].actual->sentence, "narrower mask from the launcher: 3");
  EXPECT_EQ(rows[2].placement.gpu, 2);
  EXPECT_EQ(rows[2].actual->state, BindingState::narrower) << "its mask is on the other package than its GPU";
}

TEST(DescribeJob, WiderAndOtherMasks) {
  NodeReports reports = node(0);
  reports.ranks[0].binding.cpus = reports.topology.numa_nodes()[0].cpus;
  reports.ranks[1].binding.cpus = CpuSet{{7}};
  const Report report = describe({reports});
  EXPECT_EQ(report.kinds[0].rows[0].actual->state, BindingState::wider);
  EXPECT_EQ(report.kinds[0].rows[1].actual->state, BindingState::elsewhere);
}

TEST(DescribeJob, ComparesVariablesWithWhatTheyShouldBe) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks) report.environment["OMP_NUM_THREADS"] = "99";
  const Report report = describe({reports});
  const RankRow& row = report.kinds[0].rows[0];
  const SettingRow* threads = find_setting(row, "OMP_NUM_THREADS");
  ASSERT_NE(threads, nullptr);
  EXPECT_EQ(threads->value, "2");
  EXPECT_EQ(threads->actual, "99");
  EXPECT_NE(threads->conflict, "");
  const SettingRow* sockets = find_setting(row, "GLOO_SOCKET_IFNAME");
  ASSERT_NE(sockets, nullptr);
  EXPECT_EQ(sockets->value, "ib0");
  EXPECT_FALSE(sockets->actual);
}

TEST(DescribeJob, WhatAFileOfNcclHasIsNotMissed) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks)
    report.nccl_conf = {{.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}}}};
  const Report report = describe({reports});
  const SettingRow* sockets = find_setting(report.kinds[0].rows[0], "NCCL_SOCKET_IFNAME");
  ASSERT_NE(sockets, nullptr);
  EXPECT_EQ(sockets->value, "ib");
  EXPECT_TRUE(sockets->by_user);
  EXPECT_EQ(sockets->reason, "/etc/nccl.conf has it");
}

TEST(DescribeJob, ThreadsFollowTheQuotaThatRanksShare) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks) {
    report.processor_thousandths = 1000 * reports.ranks.size();
    report.processors_group = "/job";
  }
  const Report report = describe({reports});
  EXPECT_EQ(find_setting(report.kinds[0].rows[0], "OMP_NUM_THREADS")->value, "1");
}

TEST(DescribeJob, ANamedOrderOfGpusIsKept) {
  NodeReports reports = node(0, 2);
  for (RankReport& report : reports.ranks) {
    report.named_gpus = std::vector<int>{3, 0};
    report.environment["CUDA_VISIBLE_DEVICES"] = "3,0";
  }
  const Report report = describe({reports});
  EXPECT_EQ(report.kinds[0].rows[0].placement.gpu, 3);
  EXPECT_EQ(report.kinds[0].rows[1].placement.gpu, 0);
  EXPECT_EQ(find_setting(report.kinds[0].rows[0], "CUDA_VISIBLE_DEVICES")->conflict, "");
}

TEST(DescribeJob, RanksWithGpusOfTheirOwn) {
  NodeReports reports = node(0, 3);
  for (std::size_t i = 0; i < 3; ++i) {  // srun --gpus-per-task=1: each sees one GPU, and calls it 0
    reports.ranks[i].visible_gpus = {static_cast<int>(3 - i)};
    reports.ranks[i].named_gpus = std::vector<int>{static_cast<int>(3 - i)};
    reports.ranks[i].environment["CUDA_VISIBLE_DEVICES"] = "0";
  }
  const Report report = describe({reports});
  const NodeKind& kind = report.kinds[0];
  EXPECT_FALSE(kind.topology.gpus()[0].visible);
  EXPECT_NE(kind.topology.gpus()[0].hidden_reason, "");
  EXPECT_TRUE(kind.topology.gpus()[3].visible);
  for (int i = 0; i < 3; ++i) {
    const RankRow& row = kind.rows[static_cast<std::size_t>(i)];
    EXPECT_EQ(row.placement.gpu, 3 - i);
    ASSERT_NE(find_setting(row, "CUDA_VISIBLE_DEVICES"), nullptr);
    EXPECT_EQ(find_setting(row, "CUDA_VISIBLE_DEVICES")->conflict, "") << i;
  }
}

TEST(DescribeJob, AListTooShortForTheRanksThatShareItIsAConflict) {
  NodeReports reports = node(0, 3);
  for (RankReport& report : reports.ranks) {
    report.named_gpus = std::vector<int>{1};
    report.environment["CUDA_VISIBLE_DEVICES"] = "1";
  }
  const Report report = describe({reports});
  EXPECT_NE(find_setting(report.kinds[0].rows[0], "CUDA_VISIBLE_DEVICES")->conflict, "");
}

TEST(DescribeJob, AGpuThatTheNodeDoesNotHave) {
  NodeReports reports = node(0);
  reports.ranks[2].visible_gpus = {4};
  const auto error = test::error_of([&] { describe({reports}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::mismatch);
  EXPECT_THAT(error->ranks(), ElementsAre(2));
}

}  // namespace
}  // namespace ddp::tools
