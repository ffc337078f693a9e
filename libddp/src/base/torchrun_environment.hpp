// The variables that torchrun sets for each worker (LocalElasticAgent._start_workers of PyTorch): written by ddprun
// and by the plugin for srun, read by World.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::base {

/// torch.distributed's init_method env:// cannot do without them.
inline constexpr std::array<const char*, 5> kTorchrunRequired{"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
                                                              "MASTER_PORT"};

/// Which Slurm job a worker belongs to: what it submits inherits its environment, but is a job of its own.
inline constexpr const char* kWorkerJobVariable = "DDPRUN_SLURM_JOB";

struct TorchrunVariable {
  const char* name;
  std::string value;
  bool default_only = false;  ///< a value that the user has set stays
};

struct TorchrunEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::optional<int> node_rank{};  ///< GROUP_RANK; read: absent where the user has written the environment
  std::optional<int> num_nodes{};  ///< GROUP_WORLD_SIZE; the same
  std::string role = "default";    ///< ROLE_NAME
  int role_rank = 0;               ///< among ranks of nodes of the same role
  int role_world_size = 1;
  std::string master_address{};            ///< MASTER_ADDR: host of the c10d store. Empty: no store, the user's stays
  std::uint16_t master_port = 0;           ///< MASTER_PORT
  bool agent_serves_store = false;         ///< TORCHELASTIC_USE_AGENT_STORE; else rank 0 serves it
  int restart_count = 0;                   ///< TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;                    ///< TORCHELASTIC_MAX_RESTARTS
  std::string run_id = "none";             ///< TORCHELASTIC_RUN_ID
  std::string error_file{};                ///< TORCHELASTIC_ERROR_FILE of torch's @record; empty: none
  std::optional<std::string> slurm_job{};  ///< kWorkerJobVariable: SLURM_JOB_ID, empty outside Slurm; absent: unmarked
  std::string ending_signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  ///< TORCHELASTIC_SIGNALS_TO_HANDLE

  /// All that torchrun sets, for an environment without the identity of another worker.
  std::vector<TorchrunVariable> variables() const;

  /// Reads what World needs: all but the role, local_world_size, max_restarts, run_id, error_file and ending_signals.
  /// Throws Error(invalid_argument) for a required variable that is absent and for values that cannot be understood.
  static TorchrunEnvironment read(const Environment& environment);
};

/// Whether all of kTorchrunRequired are set.
bool has_torchrun_environment(const Environment& environment);

/// Whether torchrun, ddprun or `srun --ddp` started this process, or one above it
/// (torch.distributed.is_torchelastic_launched). Not in a Slurm job that a worker with a mark (kWorkerJobVariable) has
/// submitted.
bool is_torchrun_worker(const Environment& environment);

/// Whether a variable says who a worker is, and would be wrong for another: all of variables() but tuning.
bool is_torchrun_identity(std::string_view name);

}  // namespace ddp::base
