// Finds whether a rank that got SIGKILL was ended by the kernel's OOM killer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddp::launcher {

/// Remembers the kernel's counts of OOM kills when it is made: memory.events (cgroup v2) or memory.oom_control (v1) of
/// this process's cgroup, or of the nearest above it that has one, and oom_kill of /proc/vmstat. Those further above
/// also count other jobs. Throws nothing: what cannot be read is not known.
class OomWatch {
 public:
  /// @param root "" for this machine; a folder with copies of /proc and /sys for tests.
  explicit OomWatch(std::string root = {});

  /// One sentence when a count has grown since: "the kernel's OOM killer ended a process of this job: the memory limit
  /// of its cgroup (/slurm/job_7) is 4.0 GiB", or, when only the machine's count has grown, that it is likely or, where
  /// the cgroup's count says otherwise, possible. Else empty.
  std::string explain() const;

 private:
  struct Counts {
    std::optional<std::uint64_t> cgroup;   ///< OOM kills in the cgroup
    std::optional<std::uint64_t> machine;  ///< OOM kills on this machine
    std::string cgroup_path;               ///< of the one that counts
    std::optional<std::uint64_t> limit_bytes;
    std::string limit_path;  ///< of the cgroup that has the limit
  };
  Counts read() const;

  std::string root_;
  Counts before_;
};

}  // namespace ddp::launcher
