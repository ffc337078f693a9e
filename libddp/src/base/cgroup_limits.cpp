#include "base/cgroup_limits.hpp"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

namespace ddp::base {
namespace {

namespace fs = std::filesystem;

/// Version 2: "MAX PERIOD" in microseconds, or "max PERIOD".
double quota_of(const fs::path& folder) {
  std::ifstream stream(folder / "cpu.max");
  double maximum = 0;
  double period = 0;
  return stream >> maximum >> period && maximum > 0 && period > 0 ? maximum / period : 0;
}

/// Version 1: a file each, -1 for no limit.
double quota_of_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : 0;
}

/// The same file in both versions: a number, or "max".
std::int64_t processes_of(const fs::path& folder) {
  std::ifstream stream(folder / "pids.max");
  std::int64_t most = -1;
  return stream >> most && most >= 0 ? most : -1;
}

/// Calls @p visit with a cgroup and those above it, innermost first. In a container the path may be the host's, which
/// is not visible: then the visible root is the container's own.
template <class Visit>
void climb(const fs::path& mount, fs::path path, Visit visit) {
  for (;;) {
    visit(mount / path.relative_path(), path);
    if (!path.has_relative_path()) return;
    path = path.parent_path();
  }
}

class Reader {
 public:
  explicit Reader(const fs::path& root) : root_(root), mounts_(root / "sys/fs/cgroup") {}

  CgroupLimits read() {
    std::ifstream groups(root_ / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // "0::/path", or "4:cpu,cpuacct:/path"
      const auto first = line.find(':');
      const auto second = line.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      const fs::path path = line.substr(second + 1);
      const auto has = [&](const char* controller) {
        return ("," + controllers + ",").find("," + std::string(controller) + ",") != std::string::npos;
      };
      if (controllers.empty()) {
        // Beside version 1, it may be mounted below.
        for (const fs::path& mount : {mounts_, mounts_ / "unified"}) {
          climb(mount, path, [&](const fs::path& folder, const fs::path& group) {
            take_processors(quota_of(folder), group);
            take_processes(processes_of(folder));
          });
        }
      }
      if (has("cpu")) {
        climb(mount_of(controllers, "cpu"), path,
              [&](const fs::path& folder, const fs::path& group) { take_processors(quota_of_v1(folder), group); });
      }
      if (has("pids")) {
        climb(mount_of(controllers, "pids"), path,
              [&](const fs::path& folder, const fs::path&) { take_processes(processes_of(folder)); });
      }
    }
    return std::move(limits_);
  }

 private:
  /// Version 1's folder is called by all its controllers; one's own name is a link to it, where somebody made that.
  fs::path mount_of(const std::string& controllers, const char* controller) const {
    std::error_code ignored;
    fs::path mount = mounts_ / controllers;
    return fs::exists(mount, ignored) ? mount : mounts_ / controller;
  }

  void take_processors(double limit, const fs::path& group) {
    if (limit <= 0 || (limits_.processors > 0 && limits_.processors <= limit)) return;
    limits_.processors = limit;
    limits_.processors_group = group.string();
  }
  void take_processes(std::int64_t limit) {
    if (limit >= 0 && (limits_.processes < 0 || limit < limits_.processes)) limits_.processes = limit;
  }

  const fs::path& root_;
  fs::path mounts_;
  CgroupLimits limits_;
};

}  // namespace

int CgroupLimits::whole_processors() const noexcept {
  constexpr double kMost = 1 << 20;
  return processors > 0 ? std::max(1, static_cast<int>(std::min(processors, kMost))) : 0;
}

CgroupLimits CgroupLimits::read(const fs::path& root) { return Reader{root}.read(); }

}  // namespace ddp::base
