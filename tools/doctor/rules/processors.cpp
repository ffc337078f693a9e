// Rules on cores, binding and cgroups.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

// Below this, threads of a rank, its data loaders' and its libraries' come to the limit.
constexpr std::int64_t kLeastTasksPerRank = 256;

std::int64_t processors(const RankFacts& rank) { return static_cast<std::int64_t>(rank.cpus.count()); }

/// What a rank can run on at once: cores where they are known, as two threads of one core share it.
std::int64_t cores(const RankFacts& rank) { return rank.cores > 0 ? rank.cores : processors(rank); }

void check_one_core(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    if (processors(rank) == 0 || cores(rank) > 1) continue;
    findings.on_rank(rank, "it may run on one core only");
  }
}

void check_cores_shared(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    CpuSet together;
    std::int64_t most = 0;
    for (const int rank : node.ranks) {
      const RankFacts& facts = job.ranks[static_cast<std::size_t>(rank)];
      together = together | facts.cpus;
      most = std::max(most, cores(facts));
    }
    const auto all = static_cast<std::int64_t>(together.count());
    const auto ranks = static_cast<std::int64_t>(node.ranks.size());
    if (all == 0 || all >= ranks || most <= 1) continue;  // one core each is one-core's
    findings.on_node(node, fmt::format("{} ranks share {} processors ({})", ranks, all, together.to_string()));
  }
}

void check_quota(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.cpu_quota <= 0 || rank.cpu_quota + 0.5 >= static_cast<double>(processors(rank))) continue;
    findings.on_rank(
        rank, fmt::format("{:.1f} processors' time, but {} processors to run on", rank.cpu_quota, processors(rank)));
  }
}

void check_tasks(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const std::int64_t needed = kLeastTasksPerRank * static_cast<std::int64_t>(node.ranks.size());
    const std::int64_t limit = job.ranks[static_cast<std::size_t>(node.ranks.front())].pids_limit;
    if (limit < 0 || limit >= needed) continue;
    findings.on_node(node, fmt::format("its cgroup allows {} threads to {} ranks", limit, node.ranks.size()));
  }
}

constexpr Rule kProcessorRules[] = {
    {.id = "one-core",
     .severity = Severity::warning,
     .title = "a rank has one core",
     .meaning =
         "The program, its data loaders, and the threads that drive the network take turns on it: steps wait for data "
         "and for other ranks. srun gives tasks one core unless told otherwise.",
     .fix = "srun --cpus-per-task=N (salloc's and sbatch's value does not reach srun since Slurm 22.05), or "
            "--cpu-bind=none",
     .check = &check_one_core},
    {.id = "cores-shared",
     .severity = Severity::warning,
     .title = "more ranks than processors",
     .meaning = "Ranks that wait for each other on one processor take turns, adding milliseconds to every operation.",
     .fix = "fewer ranks per node, or more cores: --cpus-per-task, --exclusive",
     .check = &check_cores_shared},
    {.id = "cpu-quota",
     .severity = Severity::warning,
     .title = "a cgroup throttles the processors",
     .meaning =
         "Libraries start as many threads as there are processors, use the quota up early in each period, and then "
         "all stand still until the next: steps take irregular times.",
     .fix = "raise cpu.max or cpu.cfs_quota_us (docker --cpus, Kubernetes limits.cpu) or bind to as many processors "
            "(--cpuset-cpus)",
     .check = &check_quota},
    {.id = "pids-limit",
     .severity = Severity::warning,
     .title = "a cgroup allows few threads",
     .meaning = "Each rank has tens of threads, its data loaders as many again; beyond the limit, starting one fails "
                "with EAGAIN.",
     .fix = "raise pids.max (docker --pids-limit, TasksMax= of the unit)",
     .check = &check_tasks},
};

}  // namespace

std::span<const Rule> processor_rules() { return kProcessorRules; }

}  // namespace ddp::tools::doctor
