// Completion of ddprun's command line in bash, written from the table of options.
#pragma once

#include <string>

#include "options/option_table.hpp"

namespace ddp::launcher {

/// A script for /usr/share/bash-completion/completions/ddprun. After PROGRAM, completion is left to the program's own.
std::string bash_completion(const OptionTable& table);

}  // namespace ddp::launcher
