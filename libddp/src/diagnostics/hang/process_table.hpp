// The processes of this host as /proc has them: which are ranks of which job.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp::diagnostics {

/// What a launcher told a process.
struct RankIdentity {
  int rank = -1;
  int world_size = 0;      ///< 0: unknown
  int local_size = 0;      ///< ranks on this host; 0: unknown
  std::string job;         ///< the same for all ranks of a job, and for no others
  std::string slurm_job;   ///< "17"; empty: none
  std::string slurm_step;  ///< "17.0"; empty: none

  /// From variables as in /proc/PID/environ. Nothing where they name no rank.
  static std::optional<RankIdentity> of(const std::map<std::string, std::string>& environment);
};

struct KnownProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  uid_t user = 0;
  std::optional<RankIdentity> identity;
  std::string slurm_step;  ///< also of processes that are no ranks
};

struct FoundRank {
  pid_t pid = 0;
  RankIdentity identity;
};

/// What a status is asked of.
struct StatusTarget {
  std::optional<pid_t> pid{};  ///< a rank, something below it, or something above ranks
  std::string slurm_job{};     ///< "17" or "17.0"; empty: none
};

class ProcessTable {
 public:
  explicit ProcessTable(std::vector<KnownProcess> processes) : processes_(std::move(processes)) {}
  /// @param proc "/proc".
  static ProcessTable read(const std::string& proc);

  /// The ranks of one job that user @p user may see, by rank. With an empty target: of the only job of this user.
  /// Throws Error: not_found, also when there is no such process; unavailable for a process of another user, and where
  /// the target has several jobs.
  std::vector<FoundRank> ranks_of(const StatusTarget& target, uid_t user) const;

 private:
  const KnownProcess* find(pid_t pid) const;
  bool is_below(const KnownProcess& process, pid_t ancestor) const;
  std::vector<const KnownProcess*> all_ranks(uid_t user) const;

  std::vector<KnownProcess> processes_;
};

}  // namespace ddp::diagnostics
