// ddprun's command line: torchrun's option names and their documentation.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

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
