// Workers get torchrun's variables, and no other process's identity.
#include "workers/worker_environment.hpp"

#include <ddp/error.hpp>

namespace ddp::launcher {
namespace {

const base::TorchrunEnvironment kWorker{.rank = 5, .world_size = 8, .local_rank = 1, .master_address = "10.0.0.1"};

TEST(WorkerEnvironment, IsTheUsersWithTorchrunsVariables) {
  EnvironmentMap expected{{"HOME", "/home/u"}, {"DDP_BIND", "none"}};
  for (const base::TorchrunVariable& each : kWorker.variables()) expected.emplace(each.name, each.value);
  EXPECT_EQ(worker_environment({{"HOME", "/home/u"}}, kWorker, {}), expected);
}

TEST(WorkerEnvironment, TheUsersNcclErrorHandlingIsKept) {
  EXPECT_THAT(worker_environment({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}, kWorker, {}),
              Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")));
}

TEST(WorkerEnvironment, AVirtualLocalRankIsAlwaysZero) {
  const auto environment = worker_environment({}, kWorker, {}, true);
  EXPECT_THAT(environment, Contains(Pair("LOCAL_RANK", "0")));
  EXPECT_THAT(environment, Contains(Pair("RANK", "5")));
  EXPECT_THAT(environment, Contains(Pair("CUDA_VISIBLE_DEVICES", "1")));
}

TEST(WorkerEnvironment, AVirtualLocalRankSeesItsOwnDeviceOnly) {
  EXPECT_THAT(worker_environment({{"CUDA_VISIBLE_DEVICES", "3,GPU-5a,7"}}, kWorker, {}, true),
              Contains(Pair("CUDA_VISIBLE_DEVICES", "GPU-5a")));
  for (const char* too_few : {"3", ""}) {
    EXPECT_THROW(worker_environment({{"CUDA_VISIBLE_DEVICES", too_few}}, kWorker, {}, true), Error) << too_few;
  }
}

TEST(WorkerEnvironment, SettingsOfThePlacementAreMadeWhereTheUserHasNone) {
  const std::vector<topology::Setting> settings{{.name = "OMP_NUM_THREADS", .value = "4", .by_user = false},
                                                {.name = "NCCL_IB_HCA", .value = "mlx5_7", .by_user = true}};
  const auto environment = worker_environment({{"NCCL_IB_HCA", "mlx5_7"}}, kWorker, settings);
  EXPECT_THAT(environment, Contains(Pair("OMP_NUM_THREADS", "4")));
  EXPECT_THAT(environment, Contains(Pair("NCCL_IB_HCA", "mlx5_7")));
  EXPECT_THAT(worker_environment({}, kWorker, settings), Not(Contains(Key("NCCL_IB_HCA"))))
      << "a user's setting comes from the environment, not from here";
}

TEST(WorkerEnvironment, RanksLearnWhyTheirInterfaceWasChosen) {
  topology::Setting gloo{.name = "GLOO_SOCKET_IFNAME", .value = "eth0", .reason = "eth0: it is fast", .by_user = false};
  EXPECT_THAT(worker_environment({}, kWorker, {gloo}), Contains(Pair("DDPRUN_INTERFACE", "eth0: it is fast")));
  EXPECT_THAT(worker_environment({}, kWorker, {gloo}), Contains(Key("DDPRUN_SETTINGS")));
  gloo.by_user = true;
  EXPECT_THAT(worker_environment({}, kWorker, {gloo}), Not(Contains(Key("DDPRUN_INTERFACE"))));
}

TEST(WorkerEnvironment, RanksDoNotBindThemselvesAgain) {
  EXPECT_THAT(worker_environment({{"DDP_BIND", "socket"}}, kWorker, {}), Contains(Pair("DDP_BIND", "none")));
}

TEST(WorkerEnvironment, OuterIdentityIsDropped) {
  for (const char* name :
       {"PMIX_RANK", "PMIX_SERVER_URI4", "PMI_FD", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess",
        "OMPI_MCA_ess_base_vpid", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "RANK",
        "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "DDP_METRICS_PORT", "DDP_METRICS_ADDRESS"}) {
    EXPECT_TRUE(is_task_identity(name)) << name;
  }
}

TEST(WorkerEnvironment, FactsAndTuningAreKept) {
  for (const char* name : {"PMIX_MCA_gds", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NODEID", "OMPI_MCA_btl", "RANKING",
                           "MY_RANK", "CUDA_VISIBLE_DEVICES", "PMIXER", "NODE_RANK", "DDP_LAUNCH", ""}) {
    EXPECT_FALSE(is_task_identity(name)) << name;
  }
  EXPECT_THAT(without_task_identity({{"RANK", "1"}, {"PATH", "/bin"}}), testing::ElementsAre(Pair("PATH", "/bin")));
}

TEST(WorkerEnvironment, LinesAreNameEqualsValue) {
  EXPECT_THAT(environment_lines({{"A", "1=2"}, {"B", ""}}), testing::ElementsAre("A=1=2", "B="));
}

}  // namespace
}  // namespace ddp::launcher
