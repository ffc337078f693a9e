#include "status/status_command.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/host_name.hpp"
#include "base/slurm_step.hpp"
#include "command/helper_lines.hpp"
#include "command/output.hpp"
#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/hang_report.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"
#include "status/slurm_hosts.hpp"

extern char** environ;

namespace ddp::tools::status {
namespace {

using diagnostics::HangAnswer;
using diagnostics::HostFacts;
using std::chrono::seconds;

/// Not those of others, which only happen to have the number of a job.
bool is_own_process(pid_t pid) {
  struct stat facts {};
  return ::stat(fmt::format("/proc/{}", pid).c_str(), &facts) == 0 && facts.st_uid == ::geteuid() &&
         !diagnostics::read_stat("/proc", pid).kernel_thread;
}

/// What a number without a word means, and what no word at all does.
void resolve(StatusOptions& options, const base::Environment& environment) {
  const std::string& word = options.unresolved;
  if (!word.empty()) {
    int pid = 0;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), pid);
    const bool number = wrong == std::errc{} && end == word.data() + word.size();
    if (number && is_own_process(pid)) {
      options.target.pid = pid;
    } else {
      options.target.slurm_job = word;
    }
  }
  if (options.target.pid || !options.target.slurm_job.empty()) return;
  const bool in_step = base::SlurmStep::read(environment).kind == base::SlurmStep::Kind::user;
  if (!in_step) options.target.slurm_job = environment.raw("SLURM_JOB_ID").value_or("");
}

/// Of all ranks. Where nothing can be read, notes say why.
diagnostics::RankStacks read_stacks(const HostFacts& facts, const base::Environment& environment, Deadline deadline) {
  std::vector<diagnostics::RankProcess> ranks;
  for (const diagnostics::RankFacts& rank : facts.ranks) {
    if (rank.state != 'X' && rank.state != 'Z') ranks.push_back({.rank = rank.rank, .pid = rank.pid});
  }
  std::vector<std::string> variables;
  for (char** line = environ; *line != nullptr; ++line) variables.emplace_back(*line);
  const auto tools = diagnostics::StackTools::find({}, environment.raw("PATH").value_or("/bin:/usr/bin"), variables);
  diagnostics::StackGatherer gatherer{std::move(ranks), tools, facts.host, deadline};
  pollfd ready{.fd = gatherer.fd(), .events = POLLIN, .revents = 0};
  while (!deadline.expired() && ::poll(&ready, 1, deadline.poll_timeout_ms()) <= 0) continue;
  return gatherer.take().value_or(diagnostics::RankStacks{});
}

diagnostics::LocalObservation look_here(const StatusOptions& options, const base::Environment& environment,
                                        Deadline deadline) {
  diagnostics::LocalObservation found = diagnostics::observe_host(options.target, {}, deadline);
  if (options.stacks) found.facts.stacks = read_stacks(found.facts, environment, deadline);
  return found;
}

/// For the process that asked. What fails is told to it.
int print_facts(const StatusOptions& options, const base::Environment& environment, Deadline deadline) {
  HostFacts facts{.host = base::host_name()};
  try {
    facts = look_here(options, environment, deadline).facts;
  } catch (const Error& error) {
    facts.notes.emplace_back(error.what());
  }
  write_standard_output(helper_lines(facts.host, encode(facts)));
  return 0;
}

diagnostics::JobObservation look(const StatusOptions& options, const base::Environment& environment,
                                 Deadline deadline) {
  if (!options.target.slurm_job.empty()) {
    SlurmHosts found = ask_slurm_hosts(options.target.slurm_job, options.stacks, deadline);
    const bool complete = static_cast<int>(found.hosts.size()) == found.nodes;
    diagnostics::JobObservation job = diagnostics::join_hosts(std::move(found.hosts), complete);
    job.notes.insert(job.notes.end(), found.notes.begin(), found.notes.end());
    return job;
  }
  diagnostics::LocalObservation found = look_here(options, environment, deadline);
  diagnostics::JobObservation job = diagnostics::join_hosts({std::move(found.facts)}, found.whole);
  if (!found.whole && job.world_size() > static_cast<int>(job.ranks.size()))
    job.notes.emplace_back("other hosts were not asked: in a job of Slurm, --job JOBID asks all of its nodes");
  return job;
}

}  // namespace

int run_status(StatusOptions options) {
  if (options.help) return write_standard_output(kStatusHelp), 0;
  const auto environment = base::Environment::process();
  resolve(options, environment);
  std::chrono::milliseconds limit = options.limit;
  if (limit.count() == 0)
    limit = options.stacks ? seconds(60) : options.target.slurm_job.empty() ? seconds(10) : seconds(30);
  const Deadline deadline = Deadline::after(limit);
  if (options.facts) return print_facts(options, environment, deadline);
  const diagnostics::JobObservation job = look(options, environment, deadline);
  const diagnostics::HangVerdict verdict = diagnostics::judge_hang(job, options.after_s);
  write_standard_output(options.json ? hang_json(job, verdict) : hang_text(job, verdict));
  switch (verdict.answer) {
    case HangAnswer::nothing_hangs: return 0;
    case HangAnswer::hangs: return 1;
    case HangAnswer::cannot_tell: break;
  }
  return kCannotTell;
}

}  // namespace ddp::tools::status
