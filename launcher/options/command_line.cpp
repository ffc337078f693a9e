// From ddprun's arguments and environment to checked options: the groups of options do the work.
#include "options/command_line.hpp"

#include <utility>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "options/argument_split.hpp"
#include "options/bash_completion.hpp"
#include "options/manual_page.hpp"
#include "options/misplaced_words.hpp"
#include "options/option_groups.hpp"
#include "options/program_text.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

/// What is printed instead of launching anything.
struct InformationFlags {
  bool help = false;
  bool version = false;
  bool manual = false;
  bool completion = false;
};

void fill(OptionTable& table, OptionDraft& draft, InformationFlags& flags) {
  add_job_options(table, draft);
  add_host_options(table, draft);
  add_program_options(table, draft);
  add_failure_options(table, draft);
  add_output_options(table, draft);
  add_placement_options(table, draft);
  add_rendezvous_options(table, draft);
  table.begin_group("Help");
  table.add_flag("-h,--help", "Show this help and end.", flags.help).torchrun_without_variable();
  table.add_flag("--version", "Show the version and end.", flags.version);
  table.begin_group("");
  table.add_flag("--generate-man", "Print the manual page.", flags.manual);
  table.add_flag("--generate-bash-completion", "Print the completion for bash.", flags.completion);
}

std::optional<Information> information(const OptionTable& table) {
  if (table.given("--help")) return Information{table.help() + help_footer()};
  if (table.given("--version")) return Information{fmt::format("ddprun (libddp) {}\n", DDP_VERSION_STRING)};
  if (table.given("--generate-man")) return Information{manual_page(table)};
  if (table.given("--generate-bash-completion")) return Information{bash_completion(table)};
  return std::nullopt;
}

}  // namespace

std::variant<LaunchOptions, Information> parse_command_line(std::span<const std::string> arguments,
                                                            const base::Environment& environment) {
  OptionTable table;
  OptionDraft draft;
  InformationFlags flags;
  fill(table, draft, flags);

  SplitArguments split = split_arguments(arguments, table.shapes());
  if (std::string remark = remark_on_program_options(split.command, split.options); !remark.empty())
    draft.notice(std::move(remark));
  table.parse(std::move(split.options));
  if (auto answer = information(table)) return std::move(*answer);
  table.read_values(environment);
  settle_host_options(table, draft, environment);
  settle_job_options(table, draft);
  settle_rendezvous_options(table, draft);
  settle_program_options(table, draft);
  settle_failure_options(table, draft, environment);
  settle_output_options(table, draft, environment);
  settle_placement_options(table, draft, environment);
  if (split.command.empty()) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "reading the command line",
                     .cause = "no program to run",
                     .hint = fmt::format("write it after the options: {}", program_text().usage)}};
  }
  draft.options.command = std::move(split.command);
  draft.options.program_hint = std::move(split.program_hint);
  return std::move(draft.options);
}

}  // namespace ddp::launcher
