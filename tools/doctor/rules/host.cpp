// Rules on limits, shared memory, namespaces, cores, binding and cgroups.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "doctor/facts.hpp"
#include "doctor/nccl_network.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::int64_t kMiB = 1024 * 1024;
// Without RDMA only small rings lock memory; 64 KiB, Linux' limit before 5.16, is too little for any of those.
constexpr std::int64_t kLeastLockedBytes = kMiB;
// NCCL and libddp take some tens of megabytes per rank; Docker's default is 64 MiB in all.
constexpr std::int64_t kShmPerRank = 32 * kMiB;
constexpr std::int64_t kLeastShm = 128 * kMiB;
// For a rank's libraries, logs and data loaders, and its connections to all other ranks.
constexpr std::int64_t kFilesOfRank = 512;
constexpr std::int64_t kFilesPerPeer = 8;

std::string bytes(std::int64_t count) {
  return count % kMiB == 0 || count >= 16 * kMiB ? fmt::format("{} MiB", count / kMiB)
                                                 : fmt::format("{} KiB", count / 1024);
}

void check_memlock_rdma(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.memlock_bytes < 0 || !takes_rdma(job.node_of(rank), rank)) continue;
    findings.on_rank(rank,
                     fmt::format("max locked memory is {}, and RDMA devices are active", bytes(rank.memlock_bytes)));
  }
}

void check_memlock(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.memlock_bytes < 0 || rank.memlock_bytes >= kLeastLockedBytes || takes_rdma(job.node_of(rank), rank))
      continue;
    findings.on_rank(rank, fmt::format("max locked memory is {}", bytes(rank.memlock_bytes)));
  }
}

void check_open_files(const JobFacts& job, Findings& findings) {
  const std::int64_t needed = kFilesOfRank + kFilesPerPeer * static_cast<std::int64_t>(job.ranks.size());
  for (const RankFacts& rank : job.ranks) {
    if (rank.open_files < 0 || rank.open_files >= needed) continue;
    findings.on_rank(
        rank, fmt::format("{} open files, but {} ranks may need {}", rank.open_files, job.ranks.size(), needed),
        fmt::format("ulimit -n {} before srun, which passes limits on; LimitNOFILE= of slurmd for all jobs", needed));
  }
}

void check_shm_size(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const std::int64_t needed = std::max(kLeastShm, kShmPerRank * static_cast<std::int64_t>(node.ranks.size()));
    if (node.facts.shm_bytes < 0) {
      findings.on_node(node, "/dev/shm is missing", "mount -t tmpfs tmpfs /dev/shm");
    } else if (node.facts.shm_bytes < needed) {
      findings.on_node(node,
                       fmt::format("/dev/shm has {}, but {} are needed", bytes(node.facts.shm_bytes), bytes(needed)));
    } else if (node.facts.shm_free_bytes < needed) {
      findings.on_node(node,
                       fmt::format("/dev/shm has {} left of {}, but {} are needed", bytes(node.facts.shm_free_bytes),
                                   bytes(node.facts.shm_bytes), bytes(needed)),
                       "remove what ended jobs have left there: ls -l /dev/shm");
    }
  }
}

void check_shm_private(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const auto& first = job.ranks[static_cast<std::size_t>(node.ranks.front())];
    for (const int rank : node.ranks) {
      if (job.ranks[static_cast<std::size_t>(rank)].shm_device == first.shm_device) continue;
      findings.on_node(node, "its ranks have different file systems at /dev/shm");
      break;
    }
  }
}

void check_namespaces(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    const Variables& first = job.ranks[static_cast<std::size_t>(node.ranks.front())].namespaces;
    std::string differing;
    for (const char* kind : {"net", "ipc", "pid", "uts"}) {
      const auto known = first.find(kind);
      const bool differs = known != first.end() && std::any_of(node.ranks.begin(), node.ranks.end(), [&](int rank) {
                             const Variables& own = job.ranks[static_cast<std::size_t>(rank)].namespaces;
                             const auto found = own.find(kind);
                             return found != own.end() && found->second != known->second;
                           });
      if (differs) differing += fmt::format("{}{}", differing.empty() ? "" : ", ", kind);
    }
    if (!differing.empty()) findings.on_node(node, fmt::format("its ranks are in different namespaces: {}", differing));
  }
}

// NCCL gives its threads a stack size of its own since this version (release notes of 2.28).
constexpr Version kSetsStack{.major = 2, .minor = 28, .patch = 0};

void check_stack(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string version = job.nccl_version(rank.rank);
    if (!rank.stack_unlimited || version.empty() || Version::of(version) >= kSetsStack) continue;
    findings.on_rank(rank, fmt::format("ulimit -s unlimited with NCCL {}", version));
  }
}

void check_ipc(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;  // users who work on one machine stay logged in there
  for (const NodeRecord& node : job.nodes) {
    if (node.facts.removes_ipc) findings.on_node(node, "the user has a session there, and logind has RemoveIPC=yes");
  }
}

constexpr Rule kHostRules[] = {
    {.id = "memlock-rdma",
     .severity = Severity::error,
     .title = "locked memory is limited where RDMA is used",
     .meaning =
         "RDMA registers memory, which locks it: beyond the limit, registration fails, often only in the middle of a "
         "run. The limit that counts is that of slurmd and of srun's shell, not of a login.",
     .fix = "LimitMEMLOCK=infinity in slurmd's unit, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
     .check = &check_memlock_rdma},
    {.id = "memlock",
     .severity = Severity::warning,
     .title = "hardly any memory may be locked",
     .meaning = "Transports that lock memory (UCX, libfabric, io_uring) fail or fall back to slower ways.",
     .fix = "ulimit -l unlimited before srun, which passes limits on; LimitMEMLOCK=infinity in slurmd's unit",
     .check = &check_memlock},
    {.id = "open-files",
     .severity = Severity::warning,
     .title = "few files may be open at once",
     .meaning =
         "Each connection to another rank, each worker of a data loader and each file takes a descriptor; without "
         "any left, connecting fails with EMFILE, at scale first.",
     .fix = "ulimit -n 65536 before srun, which passes limits on; LimitNOFILE= of slurmd for all jobs",
     .check = &check_open_files},
    {.id = "shm-size",
     .severity = Severity::error,
     .title = "/dev/shm is too small",
     .meaning =
         "Ranks of a node exchange data through /dev/shm, as data loaders do. A full one ends programs with SIGBUS, or "
         "NCCL with an error of its shared-memory transport.",
     .fix = "mount -o remount,size=50% /dev/shm; in containers --shm-size=8g or --ipc=host",
     .check = &check_shm_size},
    {.id = "shm-private",
     .severity = Severity::warning,
     .title = "ranks of a node do not share /dev/shm",
     .meaning = "NCCL and libddp then talk over the network within the node, many times slower.",
     .fix = "one container for all ranks of a node, or the host's /dev/shm in each",
     .check = &check_shm_private},
    {.id = "namespaces",
     .severity = Severity::warning,
     .title = "ranks of a node are in different namespaces",
     .meaning =
         "CUDA's handles for memory and NCCL's local sockets do not pass between network, IPC or process namespaces.",
     .fix = "one container for all ranks of a node, or the host's namespaces (--net=host --ipc=host --pid=host)",
     .check = &check_namespaces},
    {.id = "stack-unlimited",
     .severity = Severity::warning,
     .title = "an unlimited stack with an old NCCL",
     .meaning =
         "glibc then gives threads 2 MiB, which NCCL's before 2.28 can exceed: programs crash while they connect.",
     .fix = "ulimit -s 8192 before srun, which passes limits on; or NCCL 2.28",
     .check = &check_stack},
    {.id = "ipc-removed",
     .severity = Severity::warning,
     .title = "shared memory vanishes when the user logs out",
     .meaning =
         "systemd-logind removes what the user has in /dev/shm when the last session ends on that node, also what "
         "running jobs have there.",
     .fix = "RemoveIPC=no in /etc/systemd/logind.conf, or log out of the node before the job starts",
     .check = &check_ipc},
};

}  // namespace

std::span<const Rule> host_rules() { return kHostRules; }

namespace {

// Below this, the threads of a rank, its data loaders and its libraries reach the limit.
constexpr std::int64_t kLeastTasksPerRank = 256;

std::int64_t processors(const RankFacts& rank) { return static_cast<std::int64_t>(rank.cpus.count()); }

/// What a rank can run on at once: cores if known, since two threads of one core share it.
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
    if (all == 0 || all >= ranks || most <= 1) continue;  // one-core reports ranks with one core each
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
         "all pause until the next: steps take irregular times.",
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
