// What ranks of one machine would get, and the values that the printers read.
#include "topo/report_model.hpp"

#include <gmock/gmock.h>

#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const base::Environment kEmpty{{}};

TEST(DefaultNumRanks, OneForEachGpuElseOneForEachNumaNode) {
  EXPECT_EQ(default_num_ranks(test::two_packages(), kEmpty, {}), 4);
  EXPECT_EQ(default_num_ranks(test::two_packages(), base::Environment{{{"CUDA_VISIBLE_DEVICES", "1,3"}}}, {}), 2);
  EXPECT_EQ(default_num_ranks(test::two_packages(), base::Environment{{{"CUDA_VISIBLE_DEVICES", ""}}}, {}), 2);
  EXPECT_EQ(default_num_ranks(test::four_cores(), kEmpty, {}), 1);

  Topology::Parts parts = test::two_package_parts();
  parts.gpus[1].visible = false;
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 3);
  parts.gpus.clear();
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 2);
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, CpuSet{{0, 1}}), 1);
  parts.numa_nodes.push_back({.os_index = 9, .package = -1, .memory_bytes = 1});
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 2) << "memory without processors";
}

TEST(DescribeMachine, PlacesEveryRankAndDerivesItsSettings) {
  MachineQuestion question;
  question.num_ranks = 4;
  question.environment = base::Environment{{{"OMP_NUM_THREADS", "99"}}};
  question.host = "n1";
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_FALSE(report.job);
  ASSERT_EQ(report.kinds.size(), 1U);
  const NodeKind& kind = report.kinds[0];
  EXPECT_THAT(kind.hosts, ElementsAre("n1"));
  EXPECT_THAT(kind.ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kind.unused_gpus(), IsEmpty());
  for (const RankRow& row : kind.rows) {
    EXPECT_EQ(row.placement.gpu, row.local_rank);
    EXPECT_FALSE(row.actual);
    const auto threads = std::find_if(row.settings.begin(), row.settings.end(),
                                      [](const SettingRow& setting) { return setting.name == "OMP_NUM_THREADS"; });
    ASSERT_NE(threads, row.settings.end());
    EXPECT_TRUE(threads->by_user);
    EXPECT_EQ(threads->value, "99");
    EXPECT_NE(threads->conflict, "");
  }
}

TEST(DescribeMachine, StaysInsideWhatIsAllowed) {
  MachineQuestion question;
  question.num_ranks = 2;
  question.allowed = CpuSet{{0, 1, 8, 9}};
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_EQ(report.kinds[0].allowed, question.allowed);
  for (const RankRow& row : report.kinds[0].rows) EXPECT_TRUE(question.allowed.contains(row.placement.cpus));
  EXPECT_THAT(report.kinds[0].hosts, IsEmpty());
}

TEST(DescribeMachine, GpusInTheOrderOfTheEnvironment) {
  MachineQuestion question;
  question.num_ranks = 2;
  question.environment = base::Environment{{{"CUDA_VISIBLE_DEVICES", "3,0"}}};
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_EQ(report.kinds[0].rows[0].placement.gpu, 3);
  EXPECT_EQ(report.kinds[0].rows[1].placement.gpu, 0);
  EXPECT_THAT(report.kinds[0].unused_gpus(), ElementsAre(1, 2));
}

TEST(FindRank, ByTheJobsNumbers) {
  const Report report = test::sample_job();
  EXPECT_EQ(find_rank(report, 11).second->local_rank, 3);
  EXPECT_EQ(find_rank(report, 4).second->local_rank, 0);
  EXPECT_TRUE(test::error_of([&] { find_rank(report, 12); }));
}

}  // namespace
}  // namespace ddp::tools
