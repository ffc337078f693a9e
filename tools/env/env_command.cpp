#include "env/env_command.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/closest_word.hpp"
#include "base/host_name.hpp"
#include "command/judged_program.hpp"
#include "command/launched.hpp"
#include "command/output.hpp"
#include "command/store_closer.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "diagnostics/environment/variable_table.hpp"
#include "env/dump_diff.hpp"
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

}  // namespace

void run_env(const EnvOptions& options) {
  if (options.help) return write_standard_output(kEnvHelp);
  if (options.known) return write_standard_output(known_variables_page());
  if (options.own) return write_standard_output(own_variables_rows());
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
                                                 : report->to_text());
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
