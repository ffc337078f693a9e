// What the plugin does in srun, as the user: chooses the MPI type, serves the store, and informs the tasks.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "srun_side/command_line.hpp"
#include "srun_side/ddp_step_client.hpp"
#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {

/// What the plugin reads of Slurm's configuration.
struct SlurmFacts {
  std::string plugin_dirs;  ///< folders, separated by ':'
  std::string mpi_default;
  bool kill_on_bad_exit = false;
  bool prolog_at_launch = false;  ///< nodes run a prolog when the first step starts on them, and so begin at odds
  /// SrunPortRange; nothing: any port.
  std::optional<std::pair<std::uint16_t, std::uint16_t>> port_range;

  /// Of the program that the plugin is loaded into.
  static SlurmFacts read();
};

enum class MpiChoice { leave, pmix, pmi2, nothing_there };

/// PMIx, else PMI-2, unless the site's default is PMIx already. A step of several components gets PMI-2, because
/// Slurm's PMIx plugin does not connect them. PMI-2 connects those of a heterogeneous job only (joins_components).
MpiChoice choose_mpi(const SlurmFacts& facts, bool several_components);

/// Whether PMI-2 connects the components of a step. In an allocation that is not heterogeneous, srun sets PMI-2 up once
/// for each, in threads of their own that share a socket: ranks wait forever, or the step fails.
bool joins_components(const CommandLine& arguments, Lookup variable);

/// Both empty: not known yet.
struct StepName {
  std::string job{};   ///< "17"
  std::string step{};  ///< "17.0"
};

class SrunSide {
 public:
  explicit SrunSide(std::string ddp_step) : ddp_step_(std::move(ddp_step)) {}

  /// Before srun reads its options: sets SLURM_MPI_TYPE, SRUN_CPUS_PER_TASK and SLURM_KILL_BAD_EXIT if @p arguments or
  /// the environment request --ddp, each unless the user has said otherwise. Drops what an outer step has set for the
  /// task that calls srun.
  void before_options(const CommandLine& arguments, const SlurmFacts& facts);

  /// After that, before the allocation. Slurm soon copies the environment for further components of the step, so their
  /// store starts here. Throws RefusedCommand where the user's command cannot work.
  void after_options(const PluginOptions& options, const SlurmFacts& facts);

  /// The step exists.
  void before_launch(const PluginOptions& options, const SlurmFacts& facts, const StepName& name = {});

  /// The step has ended. From then on srun's own exit status is that of the rank that failed first and so ended it, and
  /// not that of those that Slurm ended then (ExitStatus).
  void at_end();

 private:
  void choose_mpi_type(const SlurmFacts& facts);
  void choose_end(const SlurmFacts& facts);
  void start_store(const PluginOptions& options, const SlurmFacts& facts, const StepName& name);

  std::string ddp_step_;
  CommandLine arguments_;
  bool refused_ = false;   ///< by SLURM_DDP=0, whatever sbatch was given
  bool stood_in_ = false;  ///< SLURM_DDP became a variable that Slurm knows
  bool pmi_available_ = true;
  bool kill_set_ = false;  ///< SLURM_KILL_BAD_EXIT, by this plugin
  bool failure_ends_step_ = false;
  bool started_ = false;
  std::optional<DdpStepClient> store_;
};

// srun's exit status: Slurm takes the highest of all tasks, which after a failure is that of tasks that Slurm has ended
// (143 for SIGTERM). No hook of SPANK can change it; the C library's on_exit(3) can.

namespace exit_status {
/// From now on this process' exit status is known when it exits. Not in its children.
void watch();

/// If this process exits with another status than 0, now or later, the status becomes @p status, unless that is 0.
/// Where it is exiting already, does not return.
void prefer(int status);
}  // namespace exit_status

}  // namespace ddp::srun_plugin
