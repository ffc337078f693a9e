#include "status/status_command.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/host_name.hpp"
#include "base/slurm_step.hpp"
#include "cli/option_values.hpp"
#include "command/job_nodes.hpp"
#include "command/output.hpp"
#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/hang_report.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"

namespace ddp::tools::status {
namespace {

// Time for squeue, for a node that srun has reached to answer, and for srun to end.
constexpr std::chrono::seconds kReserve{3};

}  // namespace

SlurmHosts ask_slurm_hosts(const std::string& job, bool stacks, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(deadline.remaining());
  const auto helper_limit = std::max(left - kReserve, std::chrono::seconds{1});
  std::vector<std::string> helper{"status", "--facts", "--job=" + job,
                                  fmt::format("--timeout={}", helper_limit.count())};
  if (stacks) helper.emplace_back("--stacks");
  NodeAnswers answers = ask_nodes_of_job(job, std::move(helper), deadline);
  SlurmHosts found{.notes = std::move(answers.notes), .nodes = answers.nodes};
  for (const Bytes& message : answers.messages) {
    try {
      found.hosts.push_back(diagnostics::decode_host_facts(message));
    } catch (const Error& error) {
      found.notes.emplace_back(error.what());
    }
  }
  return found;
}

}  // namespace ddp::tools::status

extern char** environ;

namespace ddp::tools::status {
namespace {

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

/// "17" or "17.0".
bool is_job(std::string_view text) {
  const auto dot = text.find('.');
  if (!number_of(text.substr(0, dot))) return false;
  if (dot == std::string_view::npos) return true;
  const std::string_view step = text.substr(dot + 1);
  return step == "0" || number_of(step).has_value();
}

constexpr double kLongest_s = 86'400;

double seconds_of(const std::string& option, const std::string& text, double least) {
  double seconds = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (status == std::errc{} && end == text.data() + text.size() && seconds >= least && seconds <= kLongest_s)
    return seconds;
  throw cli::UsageError{"reading " + option,
                        fmt::format("'{}' is not a number of seconds from {} to {}", text, least, kLongest_s),
                        "give seconds, as 2.5"};
}

using diagnostics::HangAnswer;
using diagnostics::HostFacts;
using std::chrono::seconds;

/// Excludes processes of other users that happen to have a job's number.
bool is_own_process(pid_t pid) {
  struct stat facts {};
  return ::stat(fmt::format("/proc/{}", pid).c_str(), &facts) == 0 && facts.st_uid == ::geteuid() &&
         !diagnostics::read_stat("/proc", pid).kernel_thread;
}

/// Resolves a number without a word, or no word at all.
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

/// The stacks of all ranks. If nothing can be read, notes say why.
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

/// Prints for the process that asked, and reports failures to it.
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

cli::OptionTable status_table(StatusOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info status",
       .usage = {"[JOBID|PID] [OPTIONS]"},
       .description =
           {"Shows which ranks hang in a running job: where each rank is, which are missing, and which wait for them. "
            "The first line is the verdict. The job is not disturbed, except by --stacks, and "
            "need not cooperate: what ranks of libddp called last is read from their memory; for other programs, /proc "
            "shows what their processes do.",
            "PID is a process of this host: a rank, a parent of ranks (ddprun, a batch script) "
            "or a descendant of one. JOBID is a job of Slurm (17) or one of its steps (17.0), all of whose nodes are "
            "asked by srun. "
            "A number that is both is a process. Without either: the job of this allocation, else the only job "
            "of this user on this host."},
       .examples = {{"ddp-info status", "on the host where the job hangs"},
                    {"ddp-info status 17 --stacks", "all nodes of job 17, with stacks"},
                    {"ddp-info status --pid $!", "what was just started in the background"}},
       .exit_statuses = {{"0", "nothing hangs"},
                         {"1", "a rank is missing or hangs"},
                         {"2", "it cannot tell, or could not look, or wrong command line"}}}};
  table.add_help();
  table.add_value("--after", "SECONDS", "How long an operation must have waited to count. Default: 5.",
                  [&](const auto& option, const auto& text) { options.after_s = seconds_of(option, text, 0); });
  table
      .add_value("--job", "JOBID", "A job of Slurm, or one of its steps.",
                 [&](const auto& option, const auto& text) {
                   if (!is_job(text))
                     cli::reject_value(option, text, "is not a job of Slurm", "give its number, as 17 or 17.0");
                   options.target.slurm_job = text;
                 })
      .choices_of("squeue --me --noheader --format=%A");
  table.add_flag("--json", "Print one JSON document instead of text.", options.json);
  table
      .add_value("--pid", "PID", "A process of this host.",
                 [&](const auto& option, const auto& text) {
                   options.target.pid = number_of(text);
                   if (!options.target.pid) cli::reject_value(option, text, "is not a process", "give its number");
                 })
      .choices_of("ps -o pid= -u \"$(id -u)\"");
  table.add_flag(
      "--stacks",
      "Also print where in the program ranks are, by py-spy or gdb, which stop them for a moment, or by /proc.",
      options.stacks);
  table.add_value("--timeout", "SECONDS",
                  "How long the answer may take. Default: 10 on one host, 30 on several, 60 with --stacks.",
                  [&](const auto& option, const auto& text) {
                    options.limit = std::chrono::milliseconds(static_cast<int>(seconds_of(option, text, 1) * 1000));
                  });
  table.begin_group("");
  table.add_flag("--facts", "What this host knows, for the process that asks all hosts.", options.facts);
  return table;
}

StatusOptions parse_status_options(std::span<const std::string> arguments) {
  StatusOptions options;
  cli::OptionTable table = status_table(options);
  for (const std::string& word : table.read(arguments)) {
    if (!is_job(word)) {
      cli::reject_words(fmt::format("'{}' is neither a process nor a job of Slurm", word),
                        "'ddp-info status --help' lists the options");
    }
    if (!options.unresolved.empty()) cli::reject_words(fmt::format("'{}' is one too many", word), "name one job");
    options.unresolved = word;
  }
  if (table.given("--help")) options.help = table.help();
  const int named =
      (options.unresolved.empty() ? 0 : 1) + (options.target.pid ? 1 : 0) + (options.target.slurm_job.empty() ? 0 : 1);
  if (named > 1) cli::reject_words("more than one job is named", "name one");
  return options;
}

int run_status(StatusOptions options) {
  if (!options.help.empty()) return write_standard_output(options.help), 0;
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
