// Which launcher an environment describes, and what every variable in it claims: a table of environments.
#include "world/launch_environment.hpp"

#include "unit/world/launch_samples.hpp"

namespace ddp::world {
namespace {

using namespace samples;
using Claims = std::map<std::string, int>;

struct Case {
  const char* name;
  Variables variables;
  std::optional<LaunchSource> forced;
  LaunchSource source;
  Claims rank_claims;
  Claims size_claims;
};

Claims as_map(const std::vector<Claim>& claims) {
  Claims map;
  for (const Claim& claim : claims) map.emplace(claim.variable, claim.value);
  return map;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"nothing", {}, {}, kSingle, {}, {}},
      {"srun with PMIx",
       pmix() + slurm(4),
       {},
       kPmix,
       {{"PMIX_RANK", 1}, {"SLURM_PROCID", 1}},
       {{"SLURM_STEP_NUM_TASKS", 4}}},
      {"ddprun inside a Slurm task: SLURM_PROCID is the launcher's",
       pmix("ddprun.7") + slurm(4),
       {},
       kPmix,
       {{"PMIX_RANK", 1}},
       {}},
      {"mpirun inside a Slurm step: SLURM_PROCID is orted's",
       pmix("1234.1") + open_mpi(1, 4) + slurm(2),
       {},
       kPmix,
       {{"PMIX_RANK", 1}, {"OMPI_COMM_WORLD_RANK", 1}},
       {{"OMPI_COMM_WORLD_SIZE", 4}}},
      {"PMIx of another step of the same job", pmix("slurm.pmix.42.1") + slurm(4), {}, kPmix, {{"PMIX_RANK", 1}}, {}},
      {"PMIX_RANK missing: the session says so", {{"PMIX_NAMESPACE", "ns"}}, {}, kPmix, {}, {}},
      {"srun with PMI-2",
       pmi2() + slurm(4),
       {},
       kPmi2,
       {{"PMI_RANK", 1}, {"SLURM_PROCID", 1}},
       {{"PMI_SIZE", 4}, {"SLURM_STEP_NUM_TASKS", 4}}},
      {"Hydra", hydra(), {}, kPmi1, {{"PMI_RANK", 1}}, {{"PMI_SIZE", 4}}},
      {"Hydra inside a Slurm step: SLURM_PROCID is its proxy's",
       hydra() + slurm(2),
       {},
       kPmi1,
       {{"PMI_RANK", 1}},
       {{"PMI_SIZE", 4}}},
      {"Hydra with -pmi-port", {{"PMI_PORT", "n0:1"}, {"PMI_ID", "1"}}, {}, kPmi1, {}, {}},
      {"Flux with its simple PMI",
       flux() + Variables{{"PMI_FD", "6"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}},
       {},
       kPmi1,
       {{"PMI_RANK", 1}},
       {{"PMI_SIZE", 4}}},
      {"PMIx is preferred to PMI-1",
       pmix("prterun-n0-1@1") + hydra(),
       {},
       kPmix,
       {{"PMIX_RANK", 1}, {"PMI_RANK", 1}},
       {{"PMI_SIZE", 4}}},
      {"forced PMI-1", pmix() + pmi2(), kPmi1, kPmi1, {}, {}},
      {"PMI-2 of a Hydra inside a Slurm task",
       pmi2() + slurm(2) + Variables{{"PMI_JOBID", "hydra-1"}},
       {},
       kPmi2,
       {{"PMI_RANK", 1}},
       {{"PMI_SIZE", 4}}},
      {"PMIx is preferred to PMI-2",
       pmix() + pmi2(),
       {},
       kPmix,
       {{"PMIX_RANK", 1}, {"PMI_RANK", 1}},
       {{"PMI_SIZE", 4}}},
      {"torchrun", torchrun(), {}, kTorchrun, {{"RANK", 1}}, {{"WORLD_SIZE", 4}}},
      {"torchrun's agent under srun: SLURM_PROCID is the agent's",
       torchrun() + slurm(2),
       {},
       kTorchrun,
       {{"RANK", 1}},
       {{"WORLD_SIZE", 4}}},
      {"torchrun's variables exported by hand in every Slurm task",
       bare_torch() + slurm(4),
       {},
       kTorchrun,
       {{"RANK", 1}, {"SLURM_PROCID", 1}},
       {{"WORLD_SIZE", 4}, {"SLURM_STEP_NUM_TASKS", 4}}},
      {"torchrun's variables beside PMIx",
       pmix() + bare_torch(),
       {},
       kPmix,
       {{"PMIX_RANK", 1}, {"RANK", 1}},
       {{"WORLD_SIZE", 4}}},
      {"one rank of Open MPI without PMIx",
       open_mpi(0, 1),
       {},
       kOpenMpi,
       {{"OMPI_COMM_WORLD_RANK", 0}},
       {{"OMPI_COMM_WORLD_SIZE", 1}}},
      {"torchrun's variables exported in an interactive shell of salloc",
       bare_torch() + slurm(1, 0) + Variables{{"SLURM_STEP_ID", "4294967290"}},
       {},
       kTorchrun,
       {{"RANK", 1}},
       {{"WORLD_SIZE", 4}}},
      {"a Slurm step with one task", slurm(1, 0), {}, kSlurm, {{"SLURM_PROCID", 0}}, {{"SLURM_STEP_NUM_TASKS", 1}}},
      {"a batch script: SLURM_PROCID but no step",
       {{"SLURM_JOB_ID", "42"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NPROCS", "8"}},
       {},
       kSingle,
       {},
       {}},
      {"a salloc shell", {{"SLURM_JOB_ID", "42"}, {"SLURM_NTASKS", "8"}}, {}, kSingle, {}, {}},
      {"RANK left over without WORLD_SIZE", {{"RANK", "0"}}, {}, kSingle, {}, {}},
      {"a world of one by half of torchrun's variables",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
       {},
       kSingle,
       {{"RANK", 0}},
       {{"WORLD_SIZE", 1}}},
      // a forced source is alone: nothing else may claim anything
      {"forced PMIx", pmix() + bare_torch() + slurm(4), kPmix, kPmix, {}, {}},
      {"forced PMI-2", pmix() + pmi2() + slurm(4), kPmi2, kPmi2, {}, {}},
      {"forced torchrun", pmix() + torchrun(), kTorchrun, kTorchrun, {}, {}},
      {"forced Open MPI", open_mpi(0, 1) + pmix(), kOpenMpi, kOpenMpi, {}, {}},
      {"forced Slurm in a batch script", {{"SLURM_PROCID", "0"}}, kSlurm, kSlurm, {}, {}},
      {"forced single in a step of many", pmix() + slurm(4) + torchrun(), kSingle, kSingle, {}, {}},
  };
  return all;
}

TEST(LaunchEnvironment, Table) {
  for (const Case& sample : cases()) {
    SCOPED_TRACE(sample.name);
    const LaunchEnvironment launch = detect_launch(base::Environment{sample.variables}, sample.forced);
    EXPECT_EQ(to_string(launch.source), to_string(sample.source));
    EXPECT_EQ(as_map(launch.rank_claims), sample.rank_claims);
    EXPECT_EQ(as_map(launch.size_claims), sample.size_claims);
    EXPECT_FALSE(launch.reason.empty());
    EXPECT_EQ(launch.torchrun.has_value(), sample.source == LaunchSource::torchrun);
    if (sample.forced) {
      EXPECT_THAT(launch.reason, testing::HasSubstr("DDP_LAUNCH"));
    }
  }
}

TEST(LaunchEnvironment, EverySourceOccursInTheTable) {
  for (int source = 0; source <= static_cast<int>(LaunchSource::single); ++source) {
    EXPECT_TRUE(std::any_of(cases().begin(), cases().end(), [&](const Case& sample) {
      return static_cast<int>(sample.source) == source && !sample.forced;
    })) << source;
  }
}

TEST(LaunchEnvironment, TorchrunsFacts) {
  const auto facts = detect_launch(base::Environment{torchrun()}, {}).torchrun.value();
  EXPECT_EQ(facts.rank, 1);
  EXPECT_EQ(facts.world_size, 4);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.node_rank, 0);
  EXPECT_EQ(facts.num_nodes, 2);
  EXPECT_EQ(facts.master_address, "node0");
  EXPECT_EQ(facts.master_port, 29500);
  EXPECT_EQ(facts.restart_count, 3);
  EXPECT_TRUE(facts.agent_serves_store);

  const auto bare = detect_launch(base::Environment{bare_torch()}, {}).torchrun.value();
  EXPECT_EQ(bare.node_rank, std::nullopt);
  EXPECT_EQ(bare.num_nodes, std::nullopt);
  EXPECT_EQ(bare.restart_count, 0);
  EXPECT_FALSE(bare.agent_serves_store);
}

TEST(LaunchEnvironment, PeersAreWhereTheInterfaceMustReach) {
  using Hosts = std::vector<std::string>;
  const auto hosts = [](const Variables& variables) {
    return detect_launch(base::Environment{variables}, {}).peer_hosts;
  };
  EXPECT_EQ(hosts(pmix() + slurm(4)), (Hosts{"n1", "n2"})) << "all nodes of the step but this one";
  EXPECT_EQ(hosts(torchrun()), (Hosts{"node0"}));
  EXPECT_EQ(hosts(bare_torch() + slurm(4)), (Hosts{"node0", "n1", "n2"}));
  EXPECT_EQ(hosts(pmix("1234.1") + slurm(2)), Hosts{}) << "the step of mpirun's daemon may have other nodes";
  EXPECT_EQ(hosts(pmix() + slurm(4) + Variables{{"SLURM_STEP_NODELIST", "n[0-"}}), Hosts{})
      << "a list that cannot be read is no reason to fail";
}

}  // namespace
}  // namespace ddp::world
