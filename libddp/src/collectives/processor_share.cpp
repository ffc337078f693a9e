#include "collectives/processor_share.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace ddp::collectives {
namespace {

/// The number of allowed processors; masks of more than 1024 need a larger set.
int count_of_mask() {
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(bits));
    if (set == nullptr) return 1;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    const bool read = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = read ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (read) return std::max(count, 1);
  }
  return 1;
}

/// Version 2: "MAX PERIOD" in microseconds, or "max PERIOD".
double quota_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  double maximum = 0;
  double period = 0;
  return stream >> maximum >> period && maximum > 0 && period > 0 ? maximum / period : 0;
}

/// Version 1: a file each, -1 for no limit.
double quota_of_v1(const std::filesystem::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : 0;
}

/// The tightest limit of a cgroup and those above it. In a container the path may be the host's, which is not visible:
/// then the visible root is the container's own.
template <class Quota>
double tightest(const std::filesystem::path& mount, std::filesystem::path path, Quota quota) {
  double least = 0;
  for (;;) {
    const double limit = quota(mount / path.relative_path());
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
    if (!path.has_relative_path()) return least;
    path = path.parent_path();
  }
}

double cgroup_quota(const std::filesystem::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  double least = 0;
  for (std::string line; std::getline(groups, line);) {  // "0::/path", or "4:cpu,cpuacct:/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::filesystem::path path = line.substr(second + 1);
    double limit = 0;
    if (controllers.empty()) {
      limit = tightest(root / "sys/fs/cgroup", path,
                       [](const std::filesystem::path& folder) { return quota_of(folder / "cpu.max"); });
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      limit = tightest(root / "sys/fs/cgroup/cpu", path, quota_of_v1);
    }
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
  }
  return least;
}

}  // namespace

ProcessorShare ProcessorShare::read(const std::filesystem::path& root) {
  return {.in_mask = count_of_mask(),
          .quota = cgroup_quota(root),
          .on_machine = std::max(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1)};
}

bool ProcessorShare::enough_for(int ranks) const noexcept {
  if (quota > 0 && quota < ranks) return false;
  return ranks <= in_mask || (in_mask < on_machine && ranks <= on_machine);
}

}  // namespace ddp::collectives
