// Reads the kernel's counts of OOM kills, of both versions of control groups (cgroups(7)).
#include "outcome/oom_watch.hpp"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace ddp::launcher {
namespace {

// Version 1 says "no limit" by the largest number of whole pages.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62U;

/// Where a version of control groups keeps its figures. Distributions and container runtimes all mount them here.
struct CgroupFiles {
  const char* folder;
  const char* counts;
  const char* limit;
};
constexpr CgroupFiles kVersion1{"/sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes"};
constexpr CgroupFiles kVersion2{"/sys/fs/cgroup", "memory.events", "memory.max"};

/// Empty if it cannot be read.
std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return stream ? text.str() : std::string{};
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = end == text.data() + text.size() || *end == '\n';
  return error == std::errc{} && whole ? std::optional{number} : std::nullopt;
}

/// The number in the line "<name> <number>".
std::optional<std::uint64_t> count_of(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ')
      return number_of(std::string_view(line).substr(name.size() + 1));
  }
  return std::nullopt;
}

/// The files and the path of the memory cgroup, from /proc/<pid>/cgroup: lines "<id>:<controllers>:<path>", and
/// "0::<path>" for version 2. Where both are mounted, the memory controller is in version 1 if it is listed there.
std::pair<CgroupFiles, std::string> find_cgroup(const std::string& text) {
  std::pair<CgroupFiles, std::string> found{kVersion2, "/"};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    std::string path = line.substr(second + 1);
    // A cgroup outside this process's cgroup namespace cannot be seen.
    if (!path.starts_with('/') || path.starts_with("/..")) path = "/";
    if (controllers.find(",memory,") != std::string::npos) return {kVersion1, path};
    if (line.starts_with("0::")) found.second = path;
  }
  return found;
}

/// Calls @p look with @p path and all paths above it, until it returns true.
template <class Look>
void go_up(std::string path, Look look) {
  while (!look(path) && path != "/") {
    const std::size_t slash = path.rfind('/');
    path = slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
  }
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double size = static_cast<double>(bytes);
  return size < 1024 * kMiB ? fmt::format("{:.1f} MiB", size / kMiB) : fmt::format("{:.1f} GiB", size / (1024 * kMiB));
}

bool grown(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& now) {
  return before && now && *now > *before;
}

}  // namespace

OomWatch::OomWatch(std::string root) : root_(std::move(root)), before_(read()) {}

OomWatch::Counts OomWatch::read() const {
  Counts counts;
  counts.machine = count_of(text_of(root_ + "/proc/vmstat"), "oom_kill");
  const auto [files, own] = find_cgroup(text_of(root_ + "/proc/self/cgroup"));
  const std::string folder = root_ + files.folder;
  go_up(own, [&, counts_file = files.counts](const std::string& path) {
    counts.cgroup = count_of(text_of(fmt::format("{}{}/{}", folder, path, counts_file)), "oom_kill");
    if (counts.cgroup) counts.cgroup_path = path;
    return counts.cgroup.has_value();
  });
  go_up(own, [&, limit_file = files.limit](const std::string& path) {
    const auto limit = number_of(text_of(fmt::format("{}{}/{}", folder, path, limit_file)));  // "max": none
    if (!limit || *limit >= kNoLimit) return false;
    counts.limit_bytes = limit;
    counts.limit_path = path;
    return true;
  });
  return counts;
}

std::string OomWatch::explain() const {
  const Counts now = read();
  const bool same_cgroup = now.cgroup && before_.cgroup && now.cgroup_path == before_.cgroup_path;
  if (same_cgroup && grown(before_.cgroup, now.cgroup)) {
    if (now.limit_bytes) {
      return fmt::format(
          "the kernel's OOM killer ended a process of this job: the memory limit of its cgroup ({}) is {}",
          now.limit_path, size_text(*now.limit_bytes));
    }
    return fmt::format(
        "the kernel's OOM killer ended a process of this job: the node ran out of memory (cgroup {} has no limit)",
        now.cgroup_path);
  }
  if (!grown(before_.machine, now.machine)) return {};
  if (same_cgroup) {
    return fmt::format(
        "the kernel's OOM killer ended a process on this node, though none that is counted in this job's cgroup ({}); "
        "perhaps another job's",
        now.cgroup_path);
  }
  return "the kernel's OOM killer ended a process on this node; probably this one";
}

}  // namespace ddp::launcher
