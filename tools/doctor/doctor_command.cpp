#include "doctor/doctor_command.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/closest_word.hpp"
#include "base/errors.hpp"
#include "base/process.hpp"
#include "base/slurm_step.hpp"
#include "cli/exit_error.hpp"
#include "command/job_surroundings.hpp"
#include "command/output.hpp"
#include "doctor/examination.hpp"
#include "doctor/report.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {
namespace {

// Where steps do not share the nodes (--overlap of all of them), srun would wait for the others' end.
constexpr std::chrono::seconds kStartTime{30};
constexpr std::chrono::seconds kEndTime{20};
constexpr int kCannotExecute = 127;
constexpr const char* kAttempted = "examining all nodes of the allocation with srun";
constexpr const char* kHint = "'ddp-info doctor --no-job' examines this node alone";

[[noreturn]] void fail(std::string cause) {
  throw Error{{.code = ErrorCode::unavailable, .attempted = kAttempted, .cause = std::move(cause), .hint = kHint}};
}

base::ChildProcess start(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw base::system_error(kAttempted, errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a health check that is ended must not leave a step
    ::signal(SIGPIPE, SIG_DFL);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(kCannotExecute);
  }
  return base::ChildProcess{child};
}

}  // namespace

int allocated_nodes(const base::Environment& environment) {
  if (!environment.has("SLURM_JOB_ID")) return 1;
  if (base::SlurmStep::read(environment).kind == base::SlurmStep::Kind::user) return 1;
  return environment.number("SLURM_JOB_NUM_NODES").value_or(1);
}

int examine_allocation(int nodes, std::span<const std::string> arguments, std::chrono::milliseconds limit) {
  std::vector<std::string> words{"srun",
                                 "--mpi=pmix",
                                 "--overlap",
                                 "--cpu-bind=quiet,none",
                                 "--kill-on-bad-exit=0",
                                 fmt::format("--immediate={}", kStartTime.count()),
                                 fmt::format("--nodes={}", nodes),
                                 fmt::format("--ntasks={}", nodes),
                                 "--ntasks-per-node=1",
                                 std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "doctor",
                                 "--under-srun"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  base::ChildProcess srun = start(std::move(words));
  if (!srun.wait(Deadline::after(kStartTime + limit + kEndTime))) {
    srun.terminate(Deadline::after(std::chrono::seconds{5}));
    fail("srun did not end in time");
  }
  const base::ProcessEnd end = srun.end().value_or(base::ProcessEnd{});
  const int status = end.code - kFirstStatusUnderSrun;
  if (!end.by_signal && status >= 0 && status <= 2) return status;
  if (!end.by_signal && end.code == kCannotExecute) fail("srun cannot be run");
  fail(end.by_signal ? fmt::format("srun was ended by signal {}", end.code)
                     : fmt::format("srun ended with status {}", end.code));
}

namespace {

using Clock = Deadline::Clock;

const Rule& find_rule(const std::string& option, std::string_view id) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) {
      if (rule.id == id) return rule;
      known.emplace_back(rule.id);
    }
  }
  const std::string closest = base::closest_word(std::string(id), known, 3);
  throw cli::UsageError{
      "reading " + option, fmt::format("there is no rule '{}'", id),
      closest.empty() ? "'ddp-info doctor --rules' lists them" : fmt::format("did you mean '{}'?", closest)};
}

void add_rules(std::vector<const Rule*>& rules, const std::string& option, std::string_view list) {
  for (;;) {
    const auto comma = list.find(',');
    rules.push_back(&find_rule(option, list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

std::optional<Severity> parse_severity(const std::string& text) {
  for (const Severity severity : {Severity::info, Severity::warning, Severity::error}) {
    if (text == to_string(severity)) return severity;
  }
  if (text == "never") return std::nullopt;
  throw cli::UsageError{"reading --fail-on", fmt::format("'{}' is not one of info, warning, error, never", text),
                        "choose one"};
}

bool contains(const std::vector<const Rule*>& rules, const Rule& rule) {
  return std::find(rules.begin(), rules.end(), &rule) != rules.end();
}

int print(const DoctorOptions& options, const JobFacts& job, Clock::time_point began) {
  Examination done{.job = &job, .rules = 0};
  done.findings = examine(job, [&](const Rule& rule) {
    if (!options.wants(rule)) return false;
    ++done.rules;
    return true;
  });
  done.time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  write_standard_output(options.json ? format_json(done) : format_text(done));
  if (!options.fail_on || done.findings.empty()) return 0;
  const Severity worst = done.findings.front().rule->severity;  // errors come first
  if (worst < *options.fail_on) return 0;
  return worst == Severity::error ? 2 : 1;
}

}  // namespace

bool DoctorOptions::wants(const Rule& rule) const {
  return (only.empty() || contains(only, rule)) && !contains(skipped, rule);
}

cli::OptionTable doctor_table(DoctorOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info doctor",
       .usage = {"[OPTIONS]"},
       .description =
           {"Looks for what makes jobs fail, hang or crawl: limits, /dev/shm, cores, names, clocks, interfaces, "
            "MTU, RDMA, GPUs, versions. Each finding has evidence and a fix; the first line is the "
            "verdict.",
            "Alone, it examines this machine. Started by a launcher, it examines every rank's node and lets the "
            "nodes probe each other, and rank 0 prints for all. In a Slurm allocation of several nodes it "
            "starts itself on each with srun."},
       .examples = {{"srun --mpi=pmix -N4 --ntasks-per-node=8 ddp-info doctor",
                     "before the program, with the program's options of srun"},
                    {"ddprun --nproc-per-node=8 ddp-info doctor", "the same under ddprun"},
                    {"ddp-info doctor --no-job --fail-on error", "in a prolog or health check of Slurm"},
                    {"ddp-info doctor --explain shm-size", "what /dev/shm is for"}},
       .exit_statuses = {{"0", "nothing found (or less than --fail-on)"},
                         {"1", "warnings"},
                         {"2", "errors"},
                         {"3", "it could not examine the job, or wrong command line"}}}};
  std::vector<std::string> ids;
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) ids.emplace_back(rule.id);
  }
  table.add_help();
  table.add_flag("--json", "Print one JSON document instead of text.", options.json);
  table
      .add_value("--explain", "RULE", "Print what a rule looks for, why it matters and how to fix it.",
                 [&](const auto& option, const auto& text) { options.explain = &find_rule(option, text); })
      .choices(ids);
  table.add_flag("--rules", "Print all rules, in Markdown.", options.rules);
  table
      .add_value("--rule", "RULE[,RULE...]", "Only these rules. May be repeated.",
                 [&](const auto& option, const auto& text) { add_rules(options.only, option, text); })
      .choices(ids)
      .repeated();
  table
      .add_value("--skip", "RULE[,RULE...]", "All but these rules. May be repeated.",
                 [&](const auto& option, const auto& text) { add_rules(options.skipped, option, text); })
      .choices(ids)
      .repeated();
  table
      .add_value("--fail-on", "WHAT",
                 "The lowest severity that makes the exit status nonzero: info, warning (default), error, or never.",
                 [&](const auto&, const auto& text) { options.fail_on = parse_severity(text); })
      .choices({"info", "warning", "error", "never"});
  table.add_flag("--no-job", "Ignore the launcher and the allocation: this machine alone.", options.no_job);
  table.begin_group("");
  table.add_flag("--under-srun", "Keep exit statuses apart from srun's.", options.under_srun);
  return table;
}

DoctorOptions parse_doctor_options(std::span<const std::string> arguments) {
  DoctorOptions options;
  cli::OptionTable table = doctor_table(options);
  table.read_options(arguments);
  if (table.given("--help")) options.help = table.help();
  return options;
}

int run_doctor(const DoctorOptions& options, std::span<const std::string> arguments) {
  if (!options.help.empty()) return write_standard_output(options.help), 0;
  if (options.rules) return write_standard_output(format_rules()), 0;
  if (options.explain != nullptr) return write_standard_output(explain(*options.explain)), 0;

  const auto began = Clock::now();
  const auto environment = base::Environment::process();
  const bool in_job = !options.no_job && is_launched(environment);
  if (!options.no_job && !in_job) {
    if (const int nodes = allocated_nodes(environment); nodes > 1) {
      return examine_allocation(nodes, arguments, environment.seconds("DDP_INIT_TIMEOUT"));
    }
  }
  const Deadline deadline = Deadline::after(environment.seconds("DDP_INIT_TIMEOUT"));
  const auto forced = in_job ? std::nullopt : std::optional{LaunchSource::single};
  const world::JobConnection connection = world::connect_job(environment, forced, deadline);
  const StoreCloser closer{*connection.store};
  const auto job = examine_job(connection, environment, deadline);
  if (!job) return options.under_srun ? kFirstStatusUnderSrun : 0;
  return (options.under_srun ? kFirstStatusUnderSrun : 0) + print(options, *job, began);
}

}  // namespace ddp::tools::doctor
