// What the plugin writes to ddp-step at once: one line, so that secrets are in no argument and no environment.
#pragma once

#include <optional>
#include <string>

namespace ddp::srun_plugin {

/// Without its newline. Nothing at the end of standard input, or when the line is not there in 10 s.
std::optional<std::string> read_input_line();

}  // namespace ddp::srun_plugin
