// The file by which a user's other processes find a running job whose nodes may change: where its coordinator is, its
// secret, its program, options and environment. ddprun --join JOBID and ddp-info resize JOB read it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/unique_fd.hpp"
#include "launch/agent_settings.hpp"

namespace ddp::launcher {

// Files in the user's home folder that hold a secret: only their owner may read them, and no reader trusts one that
// another user could have read or written.

/// HOME, or what the user database says; empty: none.
std::string users_home(const base::Environment& environment);

/// Opens a file for reading; an empty descriptor if there is none. Throws Error: system if it cannot be opened,
/// conflict for a symbolic link, for what is not a regular file, for another user's, and for one that others may use.
/// @param attempted of errors @param remedy what to do with a file that is not the user's own
/// @param leak_remedy the same for one that others may have read
base::UniqueFd open_private_file(const std::string& path, const std::string& attempted, const std::string& remedy,
                                 const std::string& leak_remedy);

enum class IfThere { keep, replace };

/// Writes the whole file, with mode 0600, under another name first, then gives it its own; on NFS, too. Makes its
/// folder and those above, with mode 0700. With IfThere::keep an existing file stays, also one that comes at the same
/// time. Throws Error(system). @return the file's inode
ino_t write_private_file(const std::string& path, const std::string& text, const std::string& attempted,
                         IfThere if_there);

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
  JobFile& operator=(JobFile&&) = delete;
  ~JobFile();

 private:
  std::string path_;
  ino_t inode_;
};

/// Nothing if there is no such file. Throws Error as open_private_file() and read_agent_settings().
std::optional<AgentSettings> read_job_file(const std::string& path);

}  // namespace ddp::launcher
