// A debugger's process: what it says, within a limit, and nothing of it left behind.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::diagnostics {

struct ToolOutput {
  std::string out, err;
  bool in_time = false;
};

/// Runs @p command, the path of a program first, with the environment "NAME=value", in a session of its own. At @p
/// deadline its processes are killed, also when they have detached from its streams; they die with this process, too.
/// Output beyond 4 MiB is dropped. Throws Error(system) where it cannot be executed.
ToolOutput run_tool(std::vector<std::string> command, std::vector<std::string> environment, Deadline deadline);

}  // namespace ddp::diagnostics
