// Runs the tools that print stacks of processes: gdb, py-spy, with a deadline each.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::diagnostics {

// The programs that read stacks: where they are, how they are called, and what one says about one process.

/// How to read stacks on this node.
struct StackTools {
  std::string py_spy;                    ///< path; empty: not installed
  std::string gdb;                       ///< path; empty: not installed
  std::vector<std::string> environment;  ///< of both: "NAME=value"
  std::string proc = "/proc";
  /// For one tool and one process. (gdb reads libtorch's symbols for 2 s of a processor's time.)
  std::chrono::milliseconds tool_limit = std::chrono::seconds(18);

  /// Looks for them in the folders of @p search_path, then in @p folder: a virtual environment's, where its interpreter
  /// was given by path; may be empty.
  static StackTools find(const std::string& folder, const std::string& search_path,
                         std::vector<std::string> environment);
};

struct ProcessStack {
  std::string tool;                ///< "py-spy", "gdb" or "proc"; empty: nothing could be read
  std::string text;                ///< see proc_stack.hpp
  std::vector<std::string> notes;  ///< what would have given more
};

/// The stack of process @p pid, or of the program that it waits for if it is a shell: Python's where it runs Python and
/// py-spy can read it, else gdb's, else the kernel's view. A tool that takes longer than its limit is killed; none is
/// started where less than a second is left until @p deadline. For any thread that lives as long as the call.
ProcessStack read_stack(const StackTools& tools, pid_t pid, Deadline deadline);

// A debugger's process: what it says, within a limit, and nothing of it left behind.

struct ToolOutput {
  std::string out, err;
  bool in_time = false;
};

/// Runs @p command, the path of a program first, with the environment "NAME=value", in a session of its own. At @p
/// deadline its processes are killed, also when they have detached from its streams; they die with this process, too.
/// Output beyond 4 MiB is dropped. Throws Error(system) where it cannot be executed.
ToolOutput run_tool(std::vector<std::string> command, std::vector<std::string> environment, Deadline deadline);

}  // namespace ddp::diagnostics
