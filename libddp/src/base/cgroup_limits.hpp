// What the cgroups of a process limit, of both versions: container managers set these, and libraries that count
// processors only start too many threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ddp::base {

struct CgroupLimits {
  double processors = 0;           ///< processors' time: cpu.max, or cpu.cfs_quota_us, over the period; 0: no limit
  std::string processors_group{};  ///< the cgroup that has it, whose processes share it; empty: no limit
  std::int64_t processes = -1;     ///< pids.max; -1: no limit

  /// The whole processors that the time is enough for, at least one. 0: no limit.
  int whole_processors() const noexcept;

  /// The tightest of this process's cgroups and those above it, as far as this process sees them. Read anew; what
  /// cannot be read limits nothing. @param root of the file system, for tests.
  static CgroupLimits read(const std::filesystem::path& root = "/");
};

}  // namespace ddp::base
