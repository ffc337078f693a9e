// The table to the letter, for a machine and for a job.
#include "topo/table.hpp"

#include <gmock/gmock.h>

#include "topo/wording.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kMachineTable = R"(what 4 ranks on a sample would get (--bind numa, --gpus all)

node n1: 2 packages, 2 NUMA nodes, 8 cores, 16 PUs
  GPUs: 4x NVIDIA H200
  NICs: 2x ConnectX-7 400 Gbit/s, 1 not usable

RANK  LOCAL  GPU                  NIC                PATH  NUMA  CORES  CPUS       OMP
0     0      0 0000:10:00.0 H200  ib0 (mlx5_0) 400G  PIX   0     2      0-1,8-9    2
1     1      1 0000:11:00.0 H200  ib0 (mlx5_0) 400G  PIX   0     2      2-3,10-11  2
2     2      2 0000:20:00.0 H200  ib1 (mlx5_1) 400G  PIX   1     2      4-5,12-13  2
3     3      3 0000:21:00.0 H200  ib1 (mlx5_1) 400G  PIX   1     2      6-7,14-15  99

settings of every rank:
  NCCL_IB_HCA="=mlx5_0:1,mlx5_1:1"  (= asks NCCL for exactly these names)

settings that differ:
  ranks 0-2  OMP_NUM_THREADS=2
  rank 3     OMP_NUM_THREADS=99  (kept: the environment has it)

warning: rank 3: OMP_NUM_THREADS=99: this rank has only 4 hardware threads

NICs that cannot be used:
  eth0  it is down

GPUs and NICs:
        ib0 (mlx5_0)  ib1 (mlx5_1)
  GPU0  PIX           SYS
  GPU1  PIX           SYS
  GPU2  SYS           PIX
  GPU3  SYS           PIX

GPUs:
        GPU0  GPU1  GPU2  GPU3
  GPU0  X     PIX   SYS   SYS
  GPU1  PIX   X     SYS   SYS
  GPU2  SYS   SYS   X     PIX
  GPU3  SYS   SYS   PIX   X

  X    the device itself
  PIX  at most one PCIe switch
  SYS  the connection between NUMA nodes
)";

TEST(Table, OfAMachine) { EXPECT_EQ(format_table(test::sample_report()), kMachineTable); }

TEST(Table, OfAJobFoldsEqualNodes) {
  const std::string text = format_table(test::sample_job());
  EXPECT_THAT(text, HasSubstr("job of 12 ranks on 3 nodes, started by pmix"));
  EXPECT_THAT(text, HasSubstr("nodes n[1-3] (3 nodes, ranks 0-11): 2 packages"));
  EXPECT_THAT(text, HasSubstr("0,4,8   0      0 0000:10:00.0 H200"));
  EXPECT_THAT(text, HasSubstr("0-1,8-9    2    not bound\n"));
  EXPECT_THAT(text, HasSubstr("2-3,10-11  2    bound as placed\n"));
  EXPECT_THAT(text, HasSubstr("ranks 0,4,8         NCCL_IB_HCA=\"=mlx5_0:1,mlx5_1:1\"  (not set)\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 0,4,8: not bound to the cores that the table shows\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 3,7,11: OMP_NUM_THREADS=99: this rank has only 4 hardware threads\n"));
}

TEST(Table, SaysWhatARankHasInstead) {
  Report report = test::sample_job();
  report.kinds[0].rows[1].settings[1].actual = "7";
  report.kinds[0].rows[2].actual->state = BindingState::narrower;
  report.kinds[0].rows[2].actual->sentence = "narrower mask from the launcher: 4";
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("OMP_NUM_THREADS=2                 (has '7')\n"));
  EXPECT_THAT(text, HasSubstr("2-3,10-11  7    bound as placed\n"));
  EXPECT_THAT(text, HasSubstr("narrower mask from the launcher: 4\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 2,6,10: bound to other cores than the table shows\n"));
}

TEST(Table, ShowsRestrictionsAndWhatIsLeftOver) {
  Report report = test::sample_report();
  NodeKind& kind = report.kinds[0];
  kind.allowed = CpuSet{{0, 1}};
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[3].visible = false;
  parts.gpus[3].hidden_reason = "its device file may not be opened (EPERM)";
  kind.topology = Topology::from_parts(std::move(parts));
  kind.rows.resize(2);
  kind.rows[1].placement.gpu = 0;
  kind.rows[1].placement.gpu_shared = true;
  kind.rows[1].placement.cores_shared = true;
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("  allowed: 2 of 16 PUs: 0-1\n"));
  EXPECT_THAT(text, HasSubstr("GPUs that no rank uses:\n  GPU 1 (0000:11:00.0)  H200\n  GPU 2 (0000:20:00.0)  H200\n"));
  EXPECT_THAT(text, HasSubstr("GPUs that may not be used:\n  GPU 3 (0000:21:00.0)  its device file may"));
  EXPECT_THAT(text, HasSubstr("0 0000:10:00.0 H200 (shared)"));
  EXPECT_THAT(text, HasSubstr("2 (shared)"));
}

TEST(Table, WithoutDevicesThereIsNoMatrix) {
  Report report;
  NodeKind kind{.topology = test::four_cores(), .allowed = test::four_cores().cpus()};
  RankRow row;
  row.ranks = {{.rank = 0, .host = ""}};
  row.placement.cpus = CpuSet{{0, 1, 2, 3}};
  row.placement.num_cores = 4;
  row.placement.numa_nodes = {0};
  kind.rows = {row};
  report.kinds = {kind};
  EXPECT_EQ(format_table(report),
            "what 1 rank on four cores would get (--bind numa, --gpus all)\n"
            "\n"
            "1 package, 1 NUMA node, 4 cores, 4 PUs\n"
            "  GPUs: none\n"
            "  NICs: none\n"
            "\n"
            "RANK  LOCAL  GPU  NIC  PATH  NUMA  CORES  CPUS  OMP\n"
            "0     0      -    -    -     0     4      0-3   -\n");
}

TEST(Table, WithoutGpusTheWordsOfThePathsAreExplainedBelowTheRanks) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus.clear();
  NodeKind& kind = report.kinds[0];
  kind.topology = Topology::from_parts(std::move(parts));
  for (RankRow& row : kind.rows) row.placement.gpu.reset();
  const std::string text = format_table(report);
  const std::string word = path_word(kind.topology, kind.rows[0].placement);
  EXPECT_THAT(text, HasSubstr("\nPATH, from the rank's NUMA node to its NIC:\n  " + word + "  "));
  EXPECT_THAT(format_table(test::sample_report()), Not(HasSubstr("PATH, from")));
}

TEST(Table, TheMatricesOfEqualMachinesStandOnce) {
  Report report = test::sample_job();
  NodeKind other = report.kinds[0];
  report.kinds[0].hosts = {"n1"};
  other.hosts = {"n2"};
  report.kinds.push_back(other);
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("distances: as for n1\n"));
  EXPECT_EQ(text.find("GPUs and NICs:"), text.rfind("GPUs and NICs:"));
}

TEST(Table, IsPlainAscii) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[0].model = "H200 \x1b[2J\xc2\xae";
  parts.nics[1].unusable_reason = "d\xc3\xa9sactiv\xc3\xa9\n";
  parts.source = "file '\x07'";
  report.kinds[0].topology = Topology::from_parts(std::move(parts));
  report.kinds[0].hosts = {"n\x1b"};
  report.kinds[0].rows[3].settings[1].conflict = "\x9b";
  for (const char c : format_table(report)) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
}

}  // namespace
}  // namespace ddp::tools
