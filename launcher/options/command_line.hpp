// ddprun's command line: torchrun's option names, and what is said of those of other launchers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/env_table.hpp"
#include "cli/option_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// What to write instead of @p name ("-np", "--num-processes"), which ddprun does not know; empty: no other launcher
/// has it either.
std::string hint_for_foreign_option(std::string_view name);

/// A remark where an option of launchers stands behind the program, as in "train.py --nproc-per-node 2"; else empty.
/// Programs that are launchers themselves have such options.
/// @param given the options that ddprun itself got
std::string remark_on_program_options(std::span<const std::string> command, std::span<const std::string> given);

cli::ProgramText program_text();

/// What --help or --version print on standard output; there is nothing to launch then.
struct Information {
  std::string text;
};

/// @param arguments without the program's own name. @param environment has defaults: PET_*, DDP_BIND, DDP_GPUS,
/// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.
/// Throws ExitError(kExitUsage) with one line that tells what is wrong and what is allowed.
std::variant<LaunchOptions, Information> parse_command_line(std::span<const std::string> arguments,
                                                            const base::Environment& environment);

}  // namespace ddp::launcher
