// The worker processes of one attempt: signals to them, and how they end, stop and resume.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include <ddp/deadline.hpp>

#include "outcome/job_outcome.hpp"
#include "workers/spawn.hpp"

namespace ddp::launcher {

/// A signal stopped a worker (SIGSTOP, ...), or it resumed.
struct StopChange {
  int local_rank;
  int signal;  ///< 0: it resumed
};

/// Owns the processes: destruction kills and reaps them. Workers are numbered by local rank, in the order of add().
/// Ended workers stay zombies until the group is destroyed, so that no other process gets their pid, which is also
/// their process group: signal_groups() never hits a stranger.
class WorkerGroup {
 public:
  WorkerGroup() = default;
  WorkerGroup(WorkerGroup&&) = default;
  WorkerGroup& operator=(WorkerGroup&&) = delete;
  ~WorkerGroup();

  void add(SpawnedProcess process) { workers_.push_back({.process = std::move(process), .ended = false}); }

  std::size_t size() const { return workers_.size(); }
  pid_t pid(int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)].process.pid; }
  int pidfd(int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)].process.pidfd.get(); }
  std::vector<pid_t> pids() const;

  /// Sends @p signal to every worker's process group, even where the worker itself has ended.
  void signal_groups(int signal) const;
  /// Kills the process groups of these; numbers that none has are passed over.
  void kill_groups(const std::vector<int>& local_ranks) const;
  /// Sends @p signal to the worker processes that have not ended, and not to their children.
  void signal_workers(int signal) const;
  /// Kills the groups of running workers and waits for these until @p deadline. Processes that they had detached become
  /// children of the subreaper. @return whether all have ended
  bool end(Deadline deadline) const noexcept;

  /// How a worker ended, once; nothing while it runs. Closes its pidfd.
  std::optional<RankEnd> take_end(int local_rank);
  /// Stops and continuations since the last call.
  std::vector<StopChange> take_stop_changes() const;

 private:
  struct Worker {
    SpawnedProcess process;
    bool ended;
  };
  std::vector<Worker> workers_;
};

// Raises ddprun's descriptor limit, which its workers must not notice.

/// Raises this process's soft limit of open files (RLIMIT_NOFILE) to what @p num_ranks ranks need, and returns the
/// previous limit for the workers: programs that use select(2) rely on a low one. Throws Error(system)
/// when the hard limit is too low, with the number of ranks that it allows.
rlimit raise_descriptor_limit(int num_ranks);

/// Makes room for @p connections besides @p num_ranks ranks; warns on standard error where the hard limit is too low.
void allow_connections(rlim_t connections, int num_ranks);

}  // namespace ddp::launcher
