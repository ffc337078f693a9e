// The environment that a rank gets: the user's, without what another launcher said about who ddprun itself is, and with
// torchrun's variables.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "topology/placement/settings.hpp"

namespace ddp::launcher {

using EnvironmentMap = std::map<std::string, std::string, std::less<>>;

/// One rank's place in the job and what belongs to its attempt.
struct RankPlace {
  int rank;
  int local_rank;
  int world_size;
  int local_world_size;
  int node_rank;  ///< torchrun's GROUP_RANK
  int num_nodes;  ///< torchrun's GROUP_WORLD_SIZE
  std::string role = "default";
  int role_rank = 0;  ///< among the ranks of nodes of the same role
  int role_world_size = 1;
  std::string master_address{};  ///< of the job's store
  int master_port = 0;
  int attempt = 0;  ///< TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;
  std::string run_id = "none";
  std::string error_file{};         ///< TORCHELASTIC_ERROR_FILE; may be empty
  std::string ending_signals{};     ///< TORCHELASTIC_SIGNALS_TO_HANDLE: "SIGTERM,SIGINT"
  bool virtual_local_rank = false;  ///< LOCAL_RANK is 0, and the only visible GPU is the rank's own
};

/// Whether a variable tells who a task is or how it reaches its launcher (PMIX_RANK, SLURM_PROCID, LOCAL_RANK, ...).
/// Such variables would give every worker the identity of ddprun. Facts about the allocation (SLURM_JOB_ID) and tuning
/// (PMIX_MCA_*) are not among them.
bool is_task_identity(std::string_view name);

/// @p inherited without the variables that are task identity.
EnvironmentMap without_task_identity(const EnvironmentMap& inherited);

/// Adds torchrun's variables for @p place (LocalElasticAgent._start_workers), the @p settings that the user has not
/// made, and DDP_BIND=none: the rank need not bind itself any more.
/// Throws Error(invalid_argument) where a virtual local rank has no device left.
EnvironmentMap worker_environment(EnvironmentMap inheritable, const RankPlace& place,
                                  const std::vector<topology::Setting>& settings);

/// "NAME=value" lines as execve(2) takes them.
std::vector<std::string> environment_lines(const EnvironmentMap& environment);

}  // namespace ddp::launcher
