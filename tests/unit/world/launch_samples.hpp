// Environments as the launchers give them to rank 1 of 4, to be combined by tests.
#pragma once

#include <ddp/world.hpp>

namespace ddp::world::samples {

using Variables = std::map<std::string, std::string, std::less<>>;

/// Both; where both have a variable, that of @p second.
inline Variables operator+(Variables first, const Variables& second) {
  for (const auto& [name, value] : second) first[name] = value;
  return first;
}

inline constexpr auto kPmix = LaunchSource::pmix;
inline constexpr auto kPmi2 = LaunchSource::pmi2;
inline constexpr auto kPmi1 = LaunchSource::pmi1;
inline constexpr auto kTorchrun = LaunchSource::torchrun;
inline constexpr auto kSlurm = LaunchSource::slurm;
inline constexpr auto kOpenMpi = LaunchSource::openmpi;
inline constexpr auto kSingle = LaunchSource::single;

/// A Slurm task of step 42.0 on node n0 of n0 to n2.
inline Variables slurm(int tasks, int rank = 1) {
  return {{"SLURM_JOB_ID", "42"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
          {"SLURM_STEP_NODELIST", "n[0-2]"},
          {"SLURMD_NODENAME", "n0"}};
}

/// The default namespace is that of the Slurm step above.
inline Variables pmix(const std::string& name_space = "slurm.pmix.42.0") {
  return {{"PMIX_NAMESPACE", name_space}, {"PMIX_RANK", "1"}};
}

inline Variables pmi2() { return {{"PMI_FD", "11"}, {"PMI_JOBID", "42.0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}; }

inline Variables hydra() {
  return {{"PMI_FD", "6"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}};
}

inline Variables flux() {
  return {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_NNODES", "2"}, {"FLUX_TASK_LOCAL_ID", "1"}};
}

/// The five variables that scripts export by hand.
inline Variables bare_torch() {
  return {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
}

/// What a torchrun agent gives its worker.
inline Variables torchrun() {
  return bare_torch() + Variables{{"TORCHELASTIC_RUN_ID", "none"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", "3"},
                                  {"GROUP_RANK", "0"},
                                  {"GROUP_WORLD_SIZE", "2"}};
}

inline Variables open_mpi(int rank, int size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", std::to_string(size)}};
}

}  // namespace ddp::world::samples
