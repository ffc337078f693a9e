#include "env/env_command.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/closest_word.hpp"
#include "base/host_name.hpp"
#include "base/launch_engine.hpp"
#include "cli/option_values.hpp"
#include "command/job_surroundings.hpp"
#include "command/output.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "diagnostics/environment/variable_table.hpp"
#include "env/dump_file.hpp"
#include "env/known_variables.hpp"
#include "env/running_ranks.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::env {
namespace {

using diagnostics::EnvironmentSource;

constexpr const char* kKey = "ddp-info.env";

/// Nothing on ranks other than 0.
std::optional<EnvironmentReport> report_of_job(const EnvironmentSource& source, const base::Environment& environment,
                                               bool all) {
  const Deadline deadline = Deadline::after(environment.seconds("DDP_INIT_TIMEOUT"));
  const world::JobConnection connection = world::connect_job(environment, {}, deadline);
  KeyValueStore& store = *connection.store;
  const StoreCloser closer{store};
  diagnostics::put_environment(store, kKey, describe(source, store.rank(), base::host_name(), all));
  store.fence(deadline);
  if (store.rank() != 0) return std::nullopt;
  return diagnostics::collect_environments(store, kKey, deadline);
}

/// Who started this process, where ddprun and Slurm did not.
std::string engine_line(const base::Environment& environment) {
  const auto task = base::EngineTask::read(environment);
  if (!task) return {};
  return fmt::format("started by {}, as task {}{}\n", task->engine, task->rank ? std::to_string(*task->rank) : "?",
                     task->tasks ? fmt::format(" of {}", *task->tasks) : "");
}

/// Of what --diff compares: a file, a running process, or the ranks of a running job.
EnvironmentReport report_of(const std::string& operand) {
  constexpr std::string_view kProcess = "pid:";
  constexpr std::string_view kJob = "job:";
  if (operand.starts_with(kJob)) return report_of_running_job(operand.substr(kJob.size()));
  if (!operand.starts_with(kProcess)) return read_dump(operand);
  const auto source = EnvironmentSource::of_process(process_number(operand.substr(kProcess.size())));
  return diagnostics::fold({describe(source, 0, base::host_name(), false)});
}

/// Nobody knows these names, and no rank has them: typing errors.
std::vector<std::string> strangers(const EnvironmentReport& report, const std::vector<std::string>& names) {
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    const bool set = std::any_of(report.variables.begin(), report.variables.end(),
                                 [&](const auto& each) { return each.name == name; });
    if (!set && explain_variable(name).empty()) unknown.push_back(name);
  }
  return unknown;
}

/// Leaves only the variables that were named, and what is found of them.
std::string explain(EnvironmentReport report, const std::vector<std::string>& names) {
  const auto is_named = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::string text;
  for (const std::string& name : names) {
    const std::string known = explain_variable(name);
    const std::string meant = known.empty() ? diagnostics::meant_name(name, {}) : std::string{};
    text += !known.empty()   ? known
            : !meant.empty() ? fmt::format("{}: not known; did you mean {}?\n", name, meant)
                             : fmt::format("{}: not known\n", name);
  }
  std::erase_if(report.variables, [&](const auto& each) { return !is_named(each.name); });
  std::erase_if(report.findings, [&](const auto& each) { return !is_named(each.variable); });
  return text + '\n' + report.to_text();
}

void check_combination(const EnvOptions& options) {
  const std::array alone{options.json, options.torch, options.known, options.newer, options.own};
  int outputs = 0;
  for (const bool each : alone) outputs += each ? 1 : 0;
  if (outputs > 1)
    cli::reject_words("--json, --torch, --known, --own and --new exclude each other", "give one of them");
  if (options.diff && options.names.size() != 2) {
    cli::reject_words(fmt::format("--diff needs two files, not {}", options.names.size()),
                      "give those of --json or DDP_DUMP_ENV, or pid:PID or job:JOBID");
  }
  const bool others = outputs > 0 || options.pid || options.all || !options.nccl.empty();
  if (options.diff && others) cli::reject_words("--diff goes with no other option", "leave the others out");
  if (!options.diff && outputs > 0 && !options.names.empty()) {
    cli::reject_words(fmt::format("'{}' is one word too many", options.names.front()),
                      "names go without --json, --torch, --known, --own and --new");
  }
}

}  // namespace

int process_number(const std::string& text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number <= 0) {
    cli::reject_words(fmt::format("'{}' is not the number of a process", text), "ps(1) and squeue -s show them");
  }
  return number;
}

cli::OptionTable env_table(EnvOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info env",
       .usage = {"[NAME...] [OPTIONS]", "--diff A B"},
       .description =
           {"Shows the environment variables that matter for training: their values on every rank of the job, "
            "where these came from, whether the NCCL that would be loaded reads them, and what is wrong. Secrets "
            "are hidden. With names: only these variables, with all that is known about each."},
       .examples = {{"srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info env", "what the ranks of a job have"},
                    {"ddp-info env NCCL_IB_TIMEOUT", "its value, meaning and range"},
                    {"ddp-info env --diff good.json bad.json", "what differs between two jobs"},
                    {"ddp-info env --diff good.json job:4711", "the same of one that runs"},
                    {"ddp-info env --nccl libnccl.so.2 --new", "which names a new NCCL has"}},
       .exit_statuses = {{"0", "success, whatever was found"},
                         {"1", "failure (a file, the process, a rank, the output, a NAME that is unknown and unset)"},
                         {"2", "wrong command line"}}}};
  table.add_flag("--all", "Also variables that have nothing to do with training.", options.all);
  table.add_flag("--diff",
                 "Compare two of these: a file of --json, --dump-env, --ddp-dump or DDP_DUMP_ENV; pid:PID, a running "
                 "process; job:JOBID or job:JOBID.STEP, the ranks of a running job.",
                 options.diff);
  table.add_help();
  table.add_flag("--json", "Print one JSON document instead of the table.", options.json);
  table.add_flag("--known", "Print the table of all known variables (Markdown) and exit.", options.known);
  const auto name = [](std::string& target) {
    return [&target](const std::string& option, const std::string& text) {
      if (text.empty()) cli::reject_words(option + " '' names nothing", "give a libnccl.so.2, or a job");
      target = text;
    };
  };
  table.add_value("--nccl", "FILE", "Judge by this library, not by the one that would be loaded.", name(options.nccl))
      .completes(cli::ValueKind::file);
  table.add_flag("--new", "Print the variables that the library reads but the table lacks, and exit.", options.newer);
  table.add_flag("--no-job", "Ignore the launcher that started this process.", options.no_job);
  table.add_flag("--own", "Print the list of libddp's own variables in docs/reference/environment.md and exit.",
                 options.own);
  table.add_value("--pid", "PID", "A running process instead of this one, as it was started.",
                  [&](const auto&, const auto& text) { options.pid = process_number(text); });
  table.add_flag("--torch", "Print rank 0's as PyTorch's DistributedDataParallel does: env:NAME=VALUE.", options.torch);
  table.begin_group("");
  table.add_value("--ranks-of", "JOB", "The ranks of a job on this node, for who asks all nodes.",
                  name(options.ranks_of));
  return table;
}

EnvOptions parse_env_options(std::span<const std::string> arguments) {
  EnvOptions options;
  cli::OptionTable table = env_table(options);
  options.names = table.read(arguments);
  if (table.given("--help")) {
    options.help = table.help();
  } else {
    check_combination(options);
  }
  return options;
}

void run_env(const EnvOptions& options) {
  if (!options.help.empty()) return write_standard_output(options.help);
  if (options.known) return write_standard_output(known_variables_page());
  if (options.own) return write_standard_output(own_variables_list());
  if (!options.ranks_of.empty()) return write_standard_output(lines_of_running_ranks(options.ranks_of));
  if (options.diff) {
    const auto a = report_of(options.names[0]);
    return write_standard_output(format_diff(a, report_of(options.names[1])));
  }
  const auto environment = base::Environment::process();
  const auto source = options.pid ? EnvironmentSource::of_process(*options.pid, options.nccl)
                                  : EnvironmentSource::process(options.nccl, surroundings_of_program(environment));
  if (options.newer) {
    if (!source.nccl.scanned()) {
      throw Error{{.code = ErrorCode::unavailable,
                   .attempted = fmt::format("reading the names of variables in {}",
                                            source.nccl.path.empty() ? "NCCL" : source.nccl.path),
                   .cause = source.nccl.problem,
                   .hint = "name the library: --nccl FILE"}};
    }
    return write_standard_output(names_not_in_table(source.nccl));
  }
  // Variables that are named are wanted, whatever they have to do with training.
  const bool all = options.all || !options.names.empty();
  std::optional<EnvironmentReport> report;
  if (!options.pid && !options.no_job && is_launched(environment)) {
    report = report_of_job(source, environment, all);
    if (!report) return;
  } else {
    report = diagnostics::fold({describe(source, 0, base::host_name(), all)});
  }
  const std::vector<std::string> unknown = strangers(*report, options.names);
  write_standard_output(options.torch            ? torch_list(source.now)
                        : options.json           ? report->to_json()
                        : !options.names.empty() ? explain(std::move(*report), options.names)
                                                 : engine_line(environment) + report->to_text());
  if (unknown.empty()) return;
  const std::string meant = diagnostics::meant_name(unknown.front(), {});
  throw Error{{.code = ErrorCode::not_found,
               .attempted = "looking for the variables that were named",
               .cause = fmt::format("{} {} known, and no rank has {}", fmt::join(unknown, ", "),
                                    unknown.size() == 1 ? "is not" : "are not", unknown.size() == 1 ? "it" : "them"),
               .hint = meant.empty() ? "'ddp-info env --known' prints those that are known"
                                     : fmt::format("did you mean {}?", meant)}};
}

}  // namespace ddp::tools::env
