#include "diagnostics/stacks/stack_tools.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "diagnostics/stacks/proc_stack.hpp"
#include "diagnostics/stacks/stack_text.hpp"
#include "diagnostics/stacks/tool_process.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::chrono::seconds kLeastTime{1};
// For what follows a tool: reading /proc instead.
constexpr std::chrono::milliseconds kReserve{300};
constexpr int kMostFrames = 64;

std::vector<std::string> py_spy_command(const std::string& path, pid_t pid) {
  return {path, "dump", "--pid", fmt::to_string(pid)};
}

std::vector<std::string> gdb_command(const std::string& path, pid_t pid) {
  std::vector<std::string> command{path, "-nx", "-nh", "-q", "-batch"};
  // No download of symbols, nor code of the program's folder; no demangling, which takes three quarters of the time for
  // libtorch's names (stack_of_gdb does it for those on the stack); then what makes equal stacks read the same.
  for (const char* setting : {"debuginfod enabled off", "auto-load off", "demangle-style none", "pagination off",
                              "width 0", "print address off", "print frame-arguments none", "print entry-values no"}) {
    command.emplace_back("-iex");
    command.push_back(fmt::format("set {}", setting));
  }
  for (const std::string& action :
       {fmt::format("attach {}", pid), fmt::format("thread apply all -ascending bt {}", kMostFrames)}) {
    command.emplace_back("-ex");
    command.push_back(action);
  }
  return command;
}

/// Why a tool told nothing.
std::string failure(const std::string& tool, const ToolOutput& said, const std::string& proc) {
  if (!said.in_time) return fmt::format("{} did not end in time", tool);
  const std::string reason = reason_of(said.err);
  std::string text = fmt::format("{} read no stack{}{}", tool, reason.empty() ? "" : ": ", reason);
  const int scope = yama_scope(proc);
  const bool refused = reason.find("ermi") != std::string::npos;  // "Permission denied", "not permitted"
  if (refused && scope > 0) {
    text += fmt::format(" (kernel.yama.ptrace_scope is {}; 0 lets it)", scope);
  } else if (refused) {
    text += " (a container may need CAP_SYS_PTRACE)";
  }
  return text;
}

/// Adds a note where it tells nothing.
bool try_tool(ProcessStack& stack, const std::string& tool, std::vector<std::string> command, const StackTools& tools,
              std::string (*stack_of)(std::string_view), Deadline deadline) {
  if (deadline.remaining() < kLeastTime) {
    stack.notes.push_back(fmt::format("there was no time left for {} on some ranks", tool));
    return false;
  }
  const auto limit = std::min<std::chrono::milliseconds>(
      tools.tool_limit, std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()) - kReserve);
  try {
    const ToolOutput said = run_tool(std::move(command), tools.environment, Deadline::after(limit));
    stack.text = stack_of(said.out);
    if (stack.text.empty()) stack.notes.push_back(failure(tool, said, tools.proc));
  } catch (const Error& error) {
    stack.notes.push_back(fmt::format("{} could not be started: {}", tool, error.cause()));
  }
  if (!stack.text.empty()) stack.tool = tool;
  return !stack.text.empty();
}

std::string find_tool(const std::string& name, std::string_view search_path) {
  for (;;) {
    const auto colon = search_path.find(':');
    const std::string path = fmt::format("{}/{}", search_path.substr(0, colon), name);
    struct stat facts {};
    if (colon != 0 && ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && ::access(path.c_str(), X_OK) == 0)
      return path;
    if (colon == std::string_view::npos) return {};
    search_path.remove_prefix(colon + 1);
  }
}

}  // namespace

StackTools StackTools::find(const std::string& folder, const std::string& search_path,
                            std::vector<std::string> environment) {
  const std::string path = folder.empty() ? search_path : search_path + ":" + folder;
  return {.py_spy = find_tool("py-spy", path), .gdb = find_tool("gdb", path), .environment = std::move(environment)};
}

ProcessStack read_stack(const StackTools& tools, pid_t pid, Deadline deadline) {
  pid = below_shells(tools.proc, pid);
  ProcessStack stack;
  if (runs_python(tools.proc, pid)) {
    if (tools.py_spy.empty()) {
      stack.notes.emplace_back("py-spy is not installed: pip install py-spy for Python's frames");
    } else if (try_tool(stack, "py-spy", py_spy_command(tools.py_spy, pid), tools, stack_of_py_spy, deadline)) {
      return stack;
    }
  }
  if (tools.gdb.empty()) {
    stack.notes.emplace_back("gdb is not installed, which reads native stacks");
  } else if (try_tool(stack, "gdb", gdb_command(tools.gdb, pid), tools, stack_of_gdb, deadline)) {
    return stack;
  }
  stack.text = stack_of_proc(tools.proc, pid);  // of which only root reads the frames
  if (!stack.text.empty()) stack.tool = "proc";
  return stack;
}

}  // namespace ddp::diagnostics
