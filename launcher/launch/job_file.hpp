// The file by which ddpruns of a user's other allocations find a running job that nodes may join: where its coordinator
// is, its secret, its program, options and environment. ddprun --join JOBID reads it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "launch/agent_settings.hpp"

namespace ddp::launcher {

/// "$XDG_STATE_HOME/libddp/jobs/CLUSTER.JOBID", or below "$HOME/.local/state"; CLUSTER is SLURM_CLUSTER_NAME. Throws
/// Error(unavailable) without a home folder.
std::string job_file_path(const base::Environment& environment, const std::string& job);

/// The file of the job that this process leads. Destruction removes it, unless another ddprun has replaced it.
class JobFile {
 public:
  /// Writes the file, with mode 0600. Throws Error(system).
  JobFile(std::string path, const AgentSettings& settings);
  JobFile(const JobFile&) = delete;
  JobFile& operator=(const JobFile&) = delete;
  ~JobFile();

 private:
  std::string path_;
  ino_t inode_;
};

/// Nothing if there is no such file. Throws Error as open_private_file() and read_agent_settings().
std::optional<AgentSettings> read_job_file(const std::string& path);

}  // namespace ddp::launcher
