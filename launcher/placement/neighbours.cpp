#include "placement/neighbours.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/slurm_step.hpp"
#include "base/torchrun_environment.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

// Deeper than any tree of processes; parents may change while they are read.
constexpr int kDeepest = 64;

std::set<pid_t> line_of(const std::string& proc, pid_t pid) {
  std::set<pid_t> line{pid};
  for (int depth = 0; pid > 1 && depth < kDeepest; ++depth) {
    pid = diagnostics::read_stat(proc, pid).parent;
    line.insert(pid);
  }
  return line;
}

/// A worker of ddprun has a mark, and a task of another step what srun --ddp has set for it.
bool is_rank(const std::map<std::string, std::string>& variables, const std::string& job, const std::string& own_step) {
  const auto is = [&](const char* name, const std::string& value) {
    const auto found = variables.find(name);
    return found != variables.end() && found->second == value;
  };
  if (is(base::kWorkerJobVariable, job)) return true;
  return variables.contains(base::kStepSettingsVariable) && is("SLURM_JOB_ID", job) && !is("SLURM_STEP_ID", own_step);
}

CpuSet mask_of(const fs::path& process) {
  try {
    return CpuSet::parse(topology::read_field(process / "status", "Cpus_allowed_list", ':').value_or(""));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::vector<NeighbourRank> read_neighbours(const std::string& proc, const base::Environment& environment, pid_t self) {
  const std::string job = environment.raw("SLURM_JOB_ID").value_or("");
  if (job.empty()) return {};
  const std::string own_step = environment.raw("SLURM_STEP_ID").value_or("");
  const std::set<pid_t> own_line = line_of(proc, self);
  std::vector<NeighbourRank> found;
  std::error_code status;
  for (fs::directory_iterator entry{proc, status}, end; !status && entry != end; entry.increment(status)) {
    const std::string name = entry->path().filename();
    NeighbourRank rank;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), rank.pid);
    if (wrong != std::errc{} || last != name.data() + name.size() || own_line.contains(rank.pid)) continue;
    struct stat facts {};
    if (::stat(entry->path().c_str(), &facts) != 0 || facts.st_uid != ::geteuid()) continue;
    if (!is_rank(diagnostics::read_environment(proc, rank.pid), job, own_step)) continue;
    rank.cpus = mask_of(entry->path());
    if (!rank.cpus.empty()) found.push_back(std::move(rank));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return found;
}

std::string shared_cores_warning(const std::vector<topology::RankPlan>& plans, const CpuSet& allowed,
                                 const std::vector<NeighbourRank>& neighbours) {
  CpuSet own;
  for (const topology::RankPlan& plan : plans) {
    if (plan.binding) own = own | plan.binding->cpus;
  }
  CpuSet shared;
  pid_t first = 0;
  for (const NeighbourRank& neighbour : neighbours) {
    if (neighbour.cpus.contains(allowed) || !neighbour.cpus.intersects(own)) continue;
    shared = shared | (neighbour.cpus & own);
    if (first == 0) first = neighbour.pid;
  }
  if (shared.empty()) return {};
  return fmt::format(
      "ranks of another launch in this allocation (process {}) are bound to the same processors, {}: give each launch "
      "its own (srun --exact, or taskset -c), or none (--bind none); see 'Several at once' in docs/reference/slurm.md",
      first, shared.to_string());
}

}  // namespace ddp::launcher
