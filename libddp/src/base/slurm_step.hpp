// Facts that Slurm and libddp's launchers put into the environment of a step's processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::base {

// The Slurm step around this process, as Slurm describes it in the environment: a batch script, a shell of salloc, or a
// step that srun started.

/// Slurm numbers srun's steps below SLURM_MAX_NORMAL_STEP_ID, and keeps the ids from there on for batch scripts
/// (SLURM_BATCH_SCRIPT), interactive shells of salloc, extern and pending steps (slurm.h of 22.05 to 26.05).
bool is_user_step(std::uint32_t step_id);

struct SlurmStep {
  enum class Kind {
    none,     ///< outside Slurm, and where Slurm describes the job only: most batch scripts and shells of salloc
    special,  ///< batch script, interactive shell or extern
    user,     ///< started by srun
  };

  Kind kind = Kind::none;
  std::string name;               ///< "1234.0"
  std::optional<int> rank;        ///< SLURM_PROCID; launchers remove it from their workers
  std::optional<int> num_tasks;   ///< SLURM_STEP_NUM_TASKS
  std::optional<int> local_rank;  ///< SLURM_LOCALID
  std::optional<int> node_rank;   ///< SLURM_NODEID
  std::optional<int> num_nodes;   ///< SLURM_STEP_NUM_NODES
  std::string tasks_per_node;     ///< SLURM_STEP_TASKS_PER_NODE: "2(x3),1"
  std::string node_list;          ///< SLURM_STEP_NODELIST: "n[1-2]"
  std::string node_name;          ///< SLURMD_NODENAME

  /// Throws Error(invalid_argument) naming the variable that should be a number and is not.
  static SlurmStep read(const Environment& environment);

  /// Whether this process is a task of a user's step, or has a task's environment.
  bool is_task() const { return kind == Kind::user && rank.has_value(); }
};

// What `srun --ddp` gives a task on top of what Slurm gives it. A launcher inside that task must not take it for the
// user's: it would give all its ranks the place of one.

/// In the task's environment.
inline constexpr const char* kStepSettingsVariable = "SLURM_DDP_SETTINGS";

/// What ddprun's placement gives its ranks, in the same form without step and processors: for reports only.
inline constexpr const char* kPlacedSettingsVariable = "DDPRUN_SETTINGS";

/// One that was set. What the user has set to something else since is the user's.
struct StepVariable {
  std::string name;
  std::uint32_t digest = 0;  ///< of its value

  friend bool operator==(const StepVariable&, const StepVariable&) = default;
};

/// The lower half of FNV-1a: detects changes, not forgery.
std::uint32_t value_digest(std::string_view value);

struct StepSettings {
  std::string step;    ///< "1234.0": the binding is that of its tasks only, not of steps that they start
  std::string cpus{};  ///< that the task had before it was bound, as CpuSet writes them; empty: not bound
  std::vector<StepVariable> variables{};

  friend bool operator==(const StepSettings&, const StepSettings&) = default;
};

/// "1234.0:0-15:DDP_BIND=1a2b3c4d,OMP_NUM_THREADS=350ca8af"
std::string encode(const StepSettings& settings);
/// Nothing for what encode() cannot have written.
std::optional<StepSettings> parse_step_settings(std::string_view text);

/// Removes those of these variables that are unchanged from the environment of this process, which must have no
/// other thread yet (unsetenv(3)), and returns what they were, without processors in a task of another step; nothing
/// outside of `srun --ddp`.
std::optional<StepSettings> drop_step_settings();

}  // namespace ddp::base
