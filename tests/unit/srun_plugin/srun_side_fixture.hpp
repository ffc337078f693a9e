// An environment without Slurm's variables, and Slurms with chosen plugins for MPI, for tests of srun's side.
#pragma once

#include "srun_side/plugin_options.hpp"
#include "srun_side/srun_side.hpp"

namespace ddp::srun_plugin::test {

namespace fs = std::filesystem;

inline constexpr const char* kVariables[] = {"SLURM_MPI_TYPE",
                                             "SLURM_CPUS_PER_TASK",
                                             "SRUN_CPUS_PER_TASK",
                                             "SLURM_DDP",
                                             "_SLURM_SPANK_OPTION_ddp_ddp",
                                             kUserVariable,
                                             kTicketVariable,
                                             "__LIBDDP_SET_SLURM_MPI_TYPE",
                                             "DDP_BACKEND",
                                             "SLURM_KILL_BAD_EXIT",
                                             "SLURM_NO_KILL",
                                             "SLURM_JOB_ID",
                                             "SLURM_HET_SIZE"};

inline std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

inline PluginOptions enabled() {
  PluginOptions options;
  options.enabled = true;
  return options;
}

inline CommandLine with_ddp() { return {.ddp = true, .cpus_per_task = false, .components = false}; }

struct SrunSideTest : ::testing::Test {
  SrunSideTest() {
    std::string name = (fs::temp_directory_path() / "srun-side-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
    for (const char* each : kVariables) ::unsetenv(each);
  }
  ~SrunSideTest() override {
    for (const char* each : kVariables) ::unsetenv(each);
    fs::remove_all(folder_);
  }

  /// A Slurm that has plugins for these types of MPI.
  SlurmFacts slurm_with(const std::vector<std::string>& types, const std::string& mpi_default = "none") {
    const fs::path plugins = folder_ / "plugins";
    fs::create_directories(plugins);
    for (const std::string& type : types) std::ofstream(plugins / ("mpi_" + type + ".so")) << "x";
    return {.plugin_dirs = "/nowhere:" + plugins.string(), .mpi_default = mpi_default, .port_range = std::nullopt};
  }

  fs::path folder_;
};

}  // namespace ddp::srun_plugin::test
