// torchrun's variables: what is written is what torchrun writes, and comes back when it is read.
#include "base/torchrun_environment.hpp"

namespace ddp::base {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables written(const TorchrunEnvironment& worker) {
  Variables variables;
  for (const TorchrunVariable& each : worker.variables()) {
    EXPECT_TRUE(variables.emplace(each.name, each.value).second) << each.name << " comes twice";
  }
  return variables;
}

TorchrunEnvironment some_worker() {
  return {.rank = 5,
          .world_size = 8,
          .local_rank = 1,
          .local_world_size = 4,
          .node_rank = 1,
          .num_nodes = 2,
          .role = "trainer",
          .role_rank = 3,
          .role_world_size = 6,
          .master_address = "10.0.0.1",
          .master_port = 4711,
          .agent_serves_store = true,
          .restart_count = 2,
          .max_restarts = 3,
          .run_id = "job7",
          .error_file = "/logs/1/error.json",
          .ending_signals = "SIGTERM,SIGINT"};
}

TEST(TorchrunEnvironment, IsThatOfTorchrun) {
  EXPECT_EQ(written(some_worker()), (Variables{{"RANK", "5"},
                                               {"LOCAL_RANK", "1"},
                                               {"WORLD_SIZE", "8"},
                                               {"LOCAL_WORLD_SIZE", "4"},
                                               {"GROUP_RANK", "1"},
                                               {"GROUP_WORLD_SIZE", "2"},
                                               {"ROLE_RANK", "3"},
                                               {"ROLE_WORLD_SIZE", "6"},
                                               {"ROLE_NAME", "trainer"},
                                               {"MASTER_ADDR", "10.0.0.1"},
                                               {"MASTER_PORT", "4711"},
                                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                                               {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                               {"TORCHELASTIC_RUN_ID", "job7"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                               {"TORCHELASTIC_ERROR_FILE", "/logs/1/error.json"},
                                               {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
                                               {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}}));
}

TEST(TorchrunEnvironment, AMarkTellsAWorkerFromAJobThatItSubmits) {
  TorchrunEnvironment worker = some_worker();
  worker.slurm_job = "7";
  auto variables = written(worker);
  EXPECT_EQ(variables.at("DDPRUN_SLURM_JOB"), "7");
  EXPECT_TRUE(is_torchrun_identity("DDPRUN_SLURM_JOB"));
  EXPECT_FALSE(is_torchrun_worker(Environment{variables}));
  variables["SLURM_JOB_ID"] = "8";
  EXPECT_FALSE(is_torchrun_worker(Environment{variables}));
  variables["SLURM_JOB_ID"] = "7";
  EXPECT_TRUE(is_torchrun_worker(Environment{variables}));
}

TEST(TorchrunEnvironment, ComesBack) {
  const TorchrunEnvironment worker = some_worker();
  const Environment environment{written(worker)};
  EXPECT_TRUE(has_torchrun_environment(environment));
  EXPECT_TRUE(is_torchrun_worker(environment));
  const TorchrunEnvironment read = TorchrunEnvironment::read(environment);
  EXPECT_EQ(read.rank, worker.rank);
  EXPECT_EQ(read.world_size, worker.world_size);
  EXPECT_EQ(read.local_rank, worker.local_rank);
  EXPECT_EQ(read.node_rank, worker.node_rank);
  EXPECT_EQ(read.num_nodes, worker.num_nodes);
  EXPECT_EQ(read.master_address, worker.master_address);
  EXPECT_EQ(read.master_port, worker.master_port);
  EXPECT_EQ(read.restart_count, worker.restart_count);
  EXPECT_TRUE(read.agent_serves_store);
}

TEST(TorchrunEnvironment, WithoutAStoreTheUsersMasterStays) {
  const Variables variables = written({.rank = 1, .world_size = 2});
  EXPECT_EQ(variables.count("MASTER_ADDR"), 0U);
  EXPECT_EQ(variables.count("MASTER_PORT"), 0U);
  EXPECT_EQ(variables.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_FALSE(has_torchrun_environment(Environment{variables}));
}

TEST(TorchrunEnvironment, IdentityIsAllButTuning) {
  for (const TorchrunVariable& each : some_worker().variables()) {
    EXPECT_EQ(is_torchrun_identity(each.name), std::string(each.name) != "TORCH_NCCL_ASYNC_ERROR_HANDLING")
        << each.name;
  }
  EXPECT_FALSE(is_torchrun_identity("NODE_RANK"));
  EXPECT_FALSE(is_torchrun_identity(""));
}

}  // namespace
}  // namespace ddp::base
