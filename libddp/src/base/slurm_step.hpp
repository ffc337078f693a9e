// The Slurm step around this process, as Slurm describes it in the environment: a batch script, a shell of salloc, or a
// step that srun started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/env_table.hpp"

namespace ddp::base {

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

}  // namespace ddp::base
