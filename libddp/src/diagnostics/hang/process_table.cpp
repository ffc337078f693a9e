#include "diagnostics/hang/process_table.hpp"

#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/slurm_step.hpp"
#include "diagnostics/hang/proc_file.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

// Deeper than any tree of processes; parents may change while the table is read.
constexpr int kDeepest = 64;

std::optional<int> number_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end()) return std::nullopt;
  const std::string& text = found->second;
  int number = -1;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::string text_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string{} : found->second;
}

std::string step_of(const Variables& variables) {
  const auto step = variables.find("SLURM_STEP_ID");
  const std::string job = text_of(variables, "SLURM_JOB_ID");
  if (job.empty() || step == variables.end()) return {};
  std::uint32_t number = 0;
  const std::string& text = step->second;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || !base::is_user_step(number)) return {};
  return fmt::format("{}.{}", job, text);
}

[[noreturn]] void refuse(ErrorCode code, std::string cause, std::string hint) {
  throw Error{{.code = code,
               .attempted = "looking for the ranks of the job",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

std::string user_name(uid_t user) {
  const passwd* const entry = ::getpwuid(user);
  return entry == nullptr ? fmt::format("user {}", user) : entry->pw_name;
}

}  // namespace

std::optional<RankIdentity> RankIdentity::of(const Variables& variables) {
  RankIdentity identity;
  identity.slurm_job = text_of(variables, "SLURM_JOB_ID");
  identity.slurm_step = step_of(variables);
  const std::string name_space = text_of(variables, "PMIX_NAMESPACE");
  if (const auto rank = number_of(variables, "RANK"); rank && variables.contains("WORLD_SIZE")) {
    identity.rank = *rank;
    identity.world_size = number_of(variables, "WORLD_SIZE").value_or(0);
    identity.local_size = number_of(variables, "LOCAL_WORLD_SIZE").value_or(0);
    identity.job = fmt::format("{} {} {}:{}", text_of(variables, "TORCHELASTIC_RUN_ID"), identity.slurm_step,
                               text_of(variables, "MASTER_ADDR"), text_of(variables, "MASTER_PORT"));
    return identity;
  }
  struct Source {
    const char* rank;
    const char* size;
    const char* local_size;
  };
  static constexpr std::array<Source, 4> kSources{
      Source{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      Source{"PMIX_RANK", "SLURM_STEP_NUM_TASKS", ""},
      Source{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
      Source{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""},
  };
  for (const Source& source : kSources) {
    const auto rank = number_of(variables, source.rank);
    if (!rank) continue;
    identity.rank = *rank;
    identity.world_size = number_of(variables, source.size).value_or(0);
    identity.local_size = number_of(variables, source.local_size).value_or(0);
    if (identity.local_size == 0 && text_of(variables, "SLURM_STEP_NUM_NODES") == "1")
      identity.local_size = identity.world_size;
    identity.job = !identity.slurm_step.empty() ? identity.slurm_step : name_space;
    // A batch script, too, has SLURM_PROCID.
    if (!identity.job.empty() || std::string_view(source.rank) == "PMI_RANK") return identity;
  }
  return std::nullopt;
}

ProcessTable ProcessTable::read(const std::string& proc) {
  std::vector<KnownProcess> processes;
  std::error_code status;
  // Neither this process, which may be a step of the job itself, nor others that look as it does.
  std::error_code unreadable;
  const fs::path own_program = fs::read_symlink("/proc/self/exe", unreadable);
  for (fs::directory_iterator entry{proc, status}, end; !status && entry != end; entry.increment(status)) {
    const std::string name = entry->path().filename();
    KnownProcess process;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), process.pid);
    if (wrong != std::errc{} || last != name.data() + name.size()) continue;
    struct stat facts {};
    if (::stat(entry->path().c_str(), &facts) != 0) continue;
    process.user = facts.st_uid;
    const ProcStat stat = read_stat(proc, process.pid);
    if (stat.state == 'X' || stat.kernel_thread) continue;
    if (!own_program.empty() && fs::read_symlink(entry->path() / "exe", unreadable) == own_program) continue;
    process.parent = stat.parent;
    const auto variables = read_environment(proc, process.pid);
    process.identity = RankIdentity::of(variables);
    process.slurm_step = step_of(variables);
    processes.push_back(std::move(process));
  }
  return ProcessTable{std::move(processes)};
}

const KnownProcess* ProcessTable::find(pid_t pid) const {
  const auto found =
      std::find_if(processes_.begin(), processes_.end(), [&](const KnownProcess& each) { return each.pid == pid; });
  return found == processes_.end() ? nullptr : &*found;
}

bool ProcessTable::is_below(const KnownProcess& process, pid_t ancestor) const {
  const KnownProcess* each = &process;
  for (int depth = 0; each != nullptr && depth < kDeepest; ++depth) {
    if (each->parent == ancestor) return true;
    each = find(each->parent);
  }
  return false;
}

/// Those that a launcher started: neither what they have started themselves, nor agents that are ranks of a launcher
/// above and launchers of the job.
std::vector<const KnownProcess*> ProcessTable::all_ranks(uid_t user) const {
  std::map<pid_t, const KnownProcess*> by_pid;
  for (const KnownProcess& each : processes_) by_pid[each.pid] = &each;
  std::set<pid_t> launchers;
  std::vector<const KnownProcess*> ranks;
  for (const KnownProcess& each : processes_) {
    if (!each.identity || (user != 0 && each.user != user)) continue;
    bool topmost = true;
    auto above = by_pid.find(each.parent);
    for (int depth = 0; above != by_pid.end() && depth < kDeepest; ++depth) {
      const auto& identity = above->second->identity;
      if (identity && identity->job == each.identity->job && identity->rank == each.identity->rank) topmost = false;
      if (identity && (identity->job != each.identity->job || identity->rank != each.identity->rank))
        launchers.insert(above->first);
      above = by_pid.find(above->second->parent);
    }
    if (topmost) ranks.push_back(&each);
  }
  std::erase_if(ranks, [&](const KnownProcess* each) { return launchers.contains(each->pid); });
  return ranks;
}

std::vector<FoundRank> ProcessTable::ranks_of(const StatusTarget& target, uid_t user) const {
  std::vector<const KnownProcess*> candidates = all_ranks(user);
  std::set<std::string> jobs;
  const auto job_of = [](const KnownProcess* each) { return each->identity->job; };
  if (target.pid) {
    const KnownProcess* const named = find(*target.pid);
    if (named == nullptr)
      refuse(ErrorCode::not_found, fmt::format("there is no process {} on this host", *target.pid),
             "name a process of this host, or a job of Slurm by --job");
    if (user != 0 && named->user != user)
      refuse(ErrorCode::unavailable, fmt::format("process {} belongs to {}", *target.pid, user_name(named->user)),
             "users see their own processes only");
    for (const KnownProcess* each : candidates) {
      const bool within = each->pid == named->pid || is_below(*each, named->pid);
      const bool above = is_below(*named, each->pid);
      if (within || above) jobs.insert(job_of(each));
    }
    if (jobs.empty() && !named->slurm_step.empty()) {
      for (const KnownProcess* each : candidates) {
        if (each->slurm_step == named->slurm_step) jobs.insert(job_of(each));
      }
    }
    if (jobs.empty()) {  // a program that no launcher started
      RankIdentity alone;
      alone.rank = 0;
      alone.world_size = alone.local_size = 1;
      return {{.pid = named->pid, .identity = std::move(alone)}};
    }
  } else if (!target.slurm_job.empty()) {
    const bool step = target.slurm_job.find('.') != std::string::npos;
    std::erase_if(candidates, [&](const KnownProcess* each) {
      return (step ? each->identity->slurm_step : each->identity->slurm_job) != target.slurm_job;
    });
    for (const KnownProcess* each : candidates) jobs.insert(job_of(each));
    if (jobs.empty()) return {};
  } else {
    for (const KnownProcess* each : candidates) jobs.insert(job_of(each));
    if (jobs.empty())
      refuse(ErrorCode::not_found, "this user has no ranks on this host", "name a process, or a job of Slurm");
  }
  if (jobs.size() > 1) {
    std::string list;
    for (const std::string& job : jobs) {
      const auto first =
          std::find_if(candidates.begin(), candidates.end(), [&](const auto* each) { return job_of(each) == job; });
      list += fmt::format("{}{}", list.empty() ? "" : ", ", (*first)->pid);
    }
    refuse(ErrorCode::unavailable, fmt::format("there are {} jobs, with ranks in processes {}", jobs.size(), list),
           "name one of these");
  }
  std::vector<FoundRank> found;
  for (const KnownProcess* each : candidates) {
    if (jobs.contains(job_of(each))) found.push_back({.pid = each->pid, .identity = *each->identity});
  }
  std::sort(found.begin(), found.end(), [](const FoundRank& a, const FoundRank& b) {
    return std::pair{a.identity.rank, a.pid} < std::pair{b.identity.rank, b.pid};
  });
  return found;
}

}  // namespace ddp::diagnostics
