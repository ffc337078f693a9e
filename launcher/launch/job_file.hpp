// The file by which a user's other processes find a running job whose nodes may change: where its coordinator is, its
// secret, its program, options and environment. ddprun --join JOBID and ddp-info resize JOB read it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "launch/agent_settings.hpp"

namespace ddp::launcher {

/// Where the files of a user's jobs are: "$XDG_STATE_HOME/libddp/jobs", or below "$HOME/.local/state". Throws
/// Error(unavailable) without a home folder.
std::string job_folder(const base::Environment& environment);

/// "$XDG_STATE_HOME/libddp/jobs/CLUSTER.JOBID", or below "$HOME/.local/state"; CLUSTER is SLURM_CLUSTER_NAME. Throws
/// Error(unavailable) without a home folder.
std::string job_file_path(const base::Environment& environment, const std::string& job);

/// The same of a job that is not a Slurm allocation's own: its name is "HOST:PID", of the ddprun that leads.
std::string job_file_path(const base::Environment& environment, const std::string& host, pid_t pid);

/// The files of the jobs that @p name means: the name of a file, or its last part, a Slurm job's number or a process
/// id.
std::vector<std::string> find_job_files(const base::Environment& environment, const std::string& name);

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
