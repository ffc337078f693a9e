// What is wrong with one process's variables, and where they came from.
#include "base/slurm_step.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "support/checkout.hpp"

namespace ddp::diagnostics {
namespace {

NcclFile nccl() { return scan_nccl(ddp::test::built_file("tests/unit/diagnostics/nccl/libnccl.so.2")); }
NcclFile no_nccl() { return {.problem = "none was found"}; }

std::vector<std::string> rules(const Variables& values, const NcclFile& library) {
  std::vector<std::string> found;
  for (const EnvironmentFinding& finding : judge(values, library))
    found.push_back(finding.variable + " " + finding.rule);
  return found;
}

TEST(Judge, NothingIsSaidOfWhatIsRight) {
  const Variables right{{"NCCL_DEBUG", "INFO"},       {"NCCL_SITE_SWITCH", "x"},       {"NCCL_TESTS_DEVICE", "0"},
                        {"NCCL_VERSION", "2.20.5-1"}, {"NCCL_FASTRAK_IFNAME", "eth1"}, {"CUDA_VISIBLE_DEVICES", "0,1"},
                        {"UCX_TLS", "rc,cuda_copy"},  {"SLURM_STEP_GPU", "0"},         {"DDP_BACKEND", "host"},
                        {"CCL_ATL", "ofi"},           {"RCCL_MSCCL_ENABLE", "yes"},    {"PATH", "/bin"},
                        {"NCCL_IB_HCA", "=mlx5_0"},   {"NCCL_CONF_FILE", "/etc/x"},    {"NCCL_ALGO", "Ring"}};
  EXPECT_THAT(rules(right, nccl()), IsEmpty());
}

TEST(Judge, TheInstalledNcclDecidesWhichNamesAreRead) {
  EXPECT_THAT(rules({{"NCCL_CUMEM_HOST_ENABLE", "1"}}, nccl()), ElementsAre("NCCL_CUMEM_HOST_ENABLE env-unread"));
  EXPECT_THAT(judge({{"NCCL_CUMEM_HOST_ENABLE", "1"}}, nccl()).front().text,
              HasSubstr("not read by NCCL 2.18.3+cuda12.1: it came with 2.23.4"));
  EXPECT_THAT(rules({{"NCCL_CUMEM_HOST_ENABLE", "1"}}, no_nccl()), IsEmpty());
  EXPECT_THAT(rules({{"NCCL_SITE_SWICH", "1"}}, nccl()), ElementsAre("NCCL_SITE_SWICH env-misspelt"));
  EXPECT_THAT(rules({{"NCCL_SITE_SWITCH", "1"}}, no_nccl()), ElementsAre("NCCL_SITE_SWITCH env-unknown"));
  EXPECT_THAT(rules({{"NCCL_SOMETHING_ELSE_AGAIN", "1"}}, nccl()),
              ElementsAre("NCCL_SOMETHING_ELSE_AGAIN env-unknown"));
}

// NCCL_CHECK_MODE came with 2.29.7, so the fixture's 2.18.3 wants the old name.
TEST(Judge, AReplacementThatTheInstalledNcclLacksIsNotProposed) {
  EXPECT_THAT(rules({{"NCCL_CHECK_POINTERS", "1"}}, nccl()), IsEmpty());
  EXPECT_THAT(rules({{"NCCL_CHECK_POINTERS", "1"}}, no_nccl()), ElementsAre("NCCL_CHECK_POINTERS env-deprecated"));
  EXPECT_EQ(judge({{"NCCL_WORK_FIFO_DEPTH", "1"}}, nccl()).front().remedy, "unset it");
  EXPECT_EQ(judge({{"NCCL_RINGS", "1"}}, nccl()).front().remedy, "use NCCL_GRAPH_FILE");
}

TEST(Judge, NamesAndValues) {
  EXPECT_THAT(
      rules({{"NCCL_DEBG", "INFO"},
             {"NCCL_TIMEOUT", "60"},
             {"NCCL_RINGS", "0 1"},
             {"NCCL_MAX_NCHANNELS", "4"},
             {"NCCL_ASYNC_ERROR_HANDLING", "1"},
             {"NCCL_IB_DISABLE", "true"},
             {"NCCL_IB_RETRY_CNT", "15"},
             {"DDP_BAKCEND", "host"}},
            nccl()),
      ElementsAre("NCCL_ASYNC_ERROR_HANDLING env-deprecated", "NCCL_DEBG env-misspelt", "NCCL_IB_DISABLE env-misread",
                  "NCCL_IB_RETRY_CNT env-range", "NCCL_MAX_NCHANNELS env-deprecated", "NCCL_RINGS env-removed",
                  "NCCL_TIMEOUT env-unread", "DDP_BAKCEND env-misspelt"));
  EXPECT_THAT(judge({{"NCCL_ALGO", "\xa5ing"}}, nccl()).front().text, HasSubstr("unknown word '\\xa5ing'"));
  NcclFile newer = nccl();
  newer.version = "2.28.9+cuda13.0";
  EXPECT_THAT(rules({{"NCCL_ALGO", "Rings"}}, nccl()), ElementsAre("NCCL_ALGO env-misread"));
  EXPECT_THAT(rules({{"NCCL_ALGO", "Rings"}}, newer), ElementsAre("NCCL_ALGO env-range"));
  const auto findings = judge({{"NCCL_RINGS", "x"}}, no_nccl());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].remedy, "use NCCL_GRAPH_FILE");
}

TEST(Describe, WhereValuesCameFrom) {
  const base::StepSettings placed{
      .step = "1.0",
      .variables = {{"UCX_NET_DEVICES", base::value_digest("mlx5_0:1")}, {"OMP_NUM_THREADS", base::value_digest("4")}}};
  EnvironmentSource source{
      .now = {{"NCCL_DEBUG", "INFO"},
              {"NCCL_ALGO", "Ring"},
              {"NCCL_PROTO", "LL"},
              {"NCCL_PSK", "hunter2"},
              {"OMP_NUM_THREADS", "8"},
              {"SLURM_JOB_ID", "7"},
              {"UCX_NET_DEVICES", "mlx5_0:1"},
              {"EDITOR", "vi"},
              {base::kStepSettingsVariable, encode(placed)}},
      .nccl = nccl(),
      .files = {{.path = "/etc/nccl.conf",
                 .digest = 1,
                 .settings = {{"NCCL_CROSS_NIC", "0"}, {"NCCL_CROSS_NIC", "1"}, {"NCCL_PROTO", "LL"}}}}};
  source.at_exec = source.now;
  source.at_exec->erase("NCCL_PROTO");
  source.at_exec->erase("NCCL_PSK");
  (*source.at_exec)["NCCL_ALGO"] = "Tree";
  const RankEnvironment own = describe(source, 3, "n0", false);
  std::vector<std::string> lines;
  for (const RankVariable& each : own.variables) lines.push_back(each.name + "=" + each.value + " " + each.origin);
  EXPECT_THAT(lines,
              ElementsAre("NCCL_ALGO=Ring changed after the start, from 'Tree'", "NCCL_CROSS_NIC=0 /etc/nccl.conf",
                          "NCCL_DEBUG=INFO environment", "NCCL_PROTO=LL /etc/nccl.conf",
                          "NCCL_PSK=(hidden) set after the start", "OMP_NUM_THREADS=8 environment",
                          "SLURM_JOB_ID=7 Slurm", "UCX_NET_DEVICES=mlx5_0:1 srun --ddp"));
  EXPECT_EQ(own.variables[0].read, true);
  EXPECT_EQ(own.variables[4].read, false);
  EXPECT_EQ(own.variables[5].read, std::nullopt);
  EXPECT_EQ(own.rank, 3);
  EXPECT_EQ(describe(source, 3, "n0", true).variables.size(), own.variables.size() + 2);
}

TEST(Describe, TheEnvironmentWinsOverAFileAndSaysSo) {
  const EnvironmentSource source{
      .now = {{"NCCL_SOCKET_IFNAME", "=eth0"}, {"NCCL_DEBUG", "INFO"}},
      .nccl = nccl(),
      .files = {{.path = "/etc/nccl.conf",
                 .digest = 1,
                 .settings = {{"NCCL_SOCKET_IFNAME", "ib0"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_ALGO", "Ring"}}}}};
  const RankEnvironment own = describe(source, 0, "n0", false);
  std::vector<std::string> lines;
  for (const RankVariable& each : own.variables) lines.push_back(each.name + "=" + each.value + " " + each.origin);
  EXPECT_THAT(lines, ElementsAre("NCCL_ALGO=Ring /etc/nccl.conf", "NCCL_DEBUG=INFO environment",
                                 "NCCL_SOCKET_IFNAME==eth0 environment, over 'ib0' in /etc/nccl.conf"));
}

TEST(Describe, ThisProcess) {
  ::setenv("NCCL_ENVIRONMENT_TEST_NAME", "1", 1);
  const auto source = EnvironmentSource::process(ddp::test::built_file("tests/unit/diagnostics/nccl/libnccl.so.2"));
  ::unsetenv("NCCL_ENVIRONMENT_TEST_NAME");
  const RankEnvironment own = describe(source, 0, "here", true);
  const auto found = std::find_if(own.variables.begin(), own.variables.end(),
                                  [](const auto& each) { return each.name == "NCCL_ENVIRONMENT_TEST_NAME"; });
  ASSERT_NE(found, own.variables.end());
  EXPECT_EQ(found->origin, "set after the start");
  EXPECT_EQ(own.nccl.version, "2.18.3+cuda12.1");
}

}  // namespace
}  // namespace ddp::diagnostics
