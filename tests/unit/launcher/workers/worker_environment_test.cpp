// Workers get torchrun's variables, and nobody else's identity.
#include "workers/worker_environment.hpp"

#include <gmock/gmock.h>

#include <ddp/error.hpp>

namespace ddp::launcher {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;
using testing::Pair;

RankPlace some_place() {
  return {.rank = 5,
          .local_rank = 1,
          .world_size = 8,
          .local_world_size = 4,
          .node_rank = 1,
          .num_nodes = 2,
          .role = "trainer",
          .role_rank = 3,
          .role_world_size = 6,
          .master_address = "10.0.0.1",
          .master_port = 4711,
          .attempt = 2,
          .max_restarts = 3,
          .run_id = "job7",
          .error_file = "/logs/1/error.json",
          .ending_signals = "SIGTERM,SIGINT"};
}

const RankPlace kPlace = some_place();

TEST(WorkerEnvironment, HasTorchrunsVariables) {
  const auto environment = worker_environment({{"HOME", "/home/u"}}, kPlace, {});
  EXPECT_THAT(environment,
              testing::UnorderedElementsAre(
                  Pair("HOME", "/home/u"), Pair("RANK", "5"), Pair("LOCAL_RANK", "1"), Pair("WORLD_SIZE", "8"),
                  Pair("LOCAL_WORLD_SIZE", "4"), Pair("GROUP_RANK", "1"), Pair("GROUP_WORLD_SIZE", "2"),
                  Pair("ROLE_RANK", "3"), Pair("ROLE_WORLD_SIZE", "6"), Pair("ROLE_NAME", "trainer"),
                  Pair("MASTER_ADDR", "10.0.0.1"), Pair("MASTER_PORT", "4711"), Pair("TORCHELASTIC_RESTART_COUNT", "2"),
                  Pair("TORCHELASTIC_MAX_RESTARTS", "3"), Pair("TORCHELASTIC_RUN_ID", "job7"),
                  Pair("TORCHELASTIC_USE_AGENT_STORE", "True"), Pair("TORCHELASTIC_ERROR_FILE", "/logs/1/error.json"),
                  Pair("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"),
                  Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), Pair("DDP_BIND", "none")));
}

TEST(WorkerEnvironment, TheUsersNcclErrorHandlingIsKept) {
  EXPECT_THAT(worker_environment({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}, kPlace, {}),
              Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")));
}

TEST(WorkerEnvironment, AVirtualLocalRankIsAlwaysZero) {
  RankPlace place = kPlace;
  place.virtual_local_rank = true;
  const auto environment = worker_environment({}, place, {});
  EXPECT_THAT(environment, Contains(Pair("LOCAL_RANK", "0")));
  EXPECT_THAT(environment, Contains(Pair("RANK", "5")));
  EXPECT_THAT(environment, Contains(Pair("CUDA_VISIBLE_DEVICES", "1")));
}

TEST(WorkerEnvironment, AVirtualLocalRankSeesItsOwnDeviceOnly) {
  RankPlace place = kPlace;
  place.virtual_local_rank = true;
  EXPECT_THAT(worker_environment({{"CUDA_VISIBLE_DEVICES", "3,GPU-5a,7"}}, place, {}),
              Contains(Pair("CUDA_VISIBLE_DEVICES", "GPU-5a")));
  for (const char* too_few : {"3", ""}) {
    EXPECT_THROW(worker_environment({{"CUDA_VISIBLE_DEVICES", too_few}}, place, {}), Error) << too_few;
  }
}

TEST(WorkerEnvironment, SettingsOfThePlacementAreMadeWhereTheUserHasNone) {
  const std::vector<topology::Setting> settings{
      {.name = "OMP_NUM_THREADS", .value = "4", .reason = {}, .by_user = false, .conflict = {}},
      {.name = "NCCL_IB_HCA", .value = "mlx5_7", .reason = {}, .by_user = true, .conflict = {}}};
  const auto environment = worker_environment({{"NCCL_IB_HCA", "mlx5_7"}}, kPlace, settings);
  EXPECT_THAT(environment, Contains(Pair("OMP_NUM_THREADS", "4")));
  EXPECT_THAT(environment, Contains(Pair("NCCL_IB_HCA", "mlx5_7")));
  EXPECT_THAT(worker_environment({}, kPlace, settings), Not(Contains(Key("NCCL_IB_HCA"))))
      << "a user's setting comes from the environment, not from here";
}

TEST(WorkerEnvironment, RanksDoNotBindThemselvesAgain) {
  EXPECT_THAT(worker_environment({{"DDP_BIND", "socket"}}, kPlace, {}), Contains(Pair("DDP_BIND", "none")));
}

TEST(WorkerEnvironment, OuterIdentityIsDropped) {
  for (const char* name :
       {"PMIX_RANK", "PMIX_SERVER_URI4", "PMI_FD", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess",
        "OMPI_MCA_ess_base_vpid", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "RANK",
        "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}) {
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
