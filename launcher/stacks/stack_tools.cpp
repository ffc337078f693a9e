#include "stacks/stack_tools.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/socket.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "options/program_lookup.hpp"
#include "stacks/proc_stack.hpp"
#include "stacks/stack_text.hpp"
#include "workers/spawn.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kLeastTime{1};
// For what follows a tool: reading /proc instead.
constexpr std::chrono::milliseconds kReserve{300};
// A debugger's output for thousands of threads; what comes after it is dropped.
constexpr std::size_t kMaxOutputBytes = std::size_t{4} << 20U;
constexpr int kMostFrames = 64;
// For a killed tool to end; one that hangs in the kernel is left to the attempt's end.
constexpr std::chrono::seconds kKillLimit{2};
// For the threads that a killed debugger had stopped to wait again where they stood.
constexpr std::chrono::milliseconds kResume{100};

struct ToolOutput {
  std::string out, err;
  bool in_time = false;
};

/// Reads what there is. @return false at the end
bool read_some(int fd, std::string& text) {
  std::array<char, 16384> piece;
  const ssize_t size = ::read(fd, piece.data(), piece.size());
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (text.size() < kMaxOutputBytes) text.append(piece.data(), static_cast<std::size_t>(size));
  return size > 0;
}

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe", errno);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  base::UniqueFd read, write;
};

/// The tool's processes are killed at @p deadline, also when they have detached from its streams.
ToolOutput run(std::vector<std::string> command, const std::vector<std::string>& environment, Deadline deadline) {
  Pipe out, err;
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  StartingWorker starting = start_worker({.rank = -1,
                                          .path = command.front(),
                                          .arguments = std::move(command),
                                          .environment = environment,
                                          .descriptor_limit = descriptors,
                                          .ignore_hangup = false,
                                          .binding = {},
                                          .standard_input = false,
                                          .standard_output = out.write.get(),
                                          .standard_error = err.write.get()});
  out.write.reset();
  err.write.reset();
  const SpawnedProcess process = starting.confirm(deadline);
  ToolOutput said;
  std::array<pollfd, 2> streams{pollfd{.fd = out.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = err.read.get(), .events = POLLIN, .revents = 0}};
  while ((streams[0].fd >= 0 || streams[1].fd >= 0) && !deadline.expired()) {
    if (::poll(streams.data(), streams.size(), deadline.poll_timeout_ms()) <= 0) continue;
    if (streams[0].revents != 0 && !read_some(streams[0].fd, said.out)) streams[0].fd = -1;
    if (streams[1].revents != 0 && !read_some(streams[1].fd, said.err)) streams[1].fd = -1;
  }
  said.in_time = streams[0].fd < 0 && streams[1].fd < 0;
  ::kill(-process.pid, SIGKILL);
  // A parent that takes SIGCHLD may have reaped it already.
  if (base::wait_for(process.pidfd.get(), POLLIN, Deadline::after(kKillLimit))) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG);
  }
  if (!said.in_time) std::this_thread::sleep_for(kResume);
  return said;
}

std::vector<std::string> py_spy_command(const std::string& path, pid_t pid) {
  return {path, "dump", "--pid", fmt::to_string(pid)};
}

std::vector<std::string> gdb_command(const std::string& path, pid_t pid) {
  std::vector<std::string> command{path, "-nx", "-nh", "-q", "-batch"};
  // No download of symbols, nor code of the program's folder; then what makes equal stacks read the same.
  for (const char* setting : {"debuginfod enabled off", "auto-load off", "pagination off", "width 0",
                              "print address off", "print frame-arguments none", "print entry-values no"}) {
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
    const ToolOutput said = run(std::move(command), tools.environment, Deadline::after(limit));
    stack.text = stack_of(said.out);
    if (stack.text.empty()) stack.notes.push_back(failure(tool, said, tools.proc));
  } catch (const Error& error) {
    stack.notes.push_back(fmt::format("{} could not be started: {}", tool, error.cause()));
  }
  if (!stack.text.empty()) stack.tool = tool;
  return !stack.text.empty();
}

std::string find_tool(const std::string& name, const std::string& search_path) {
  try {
    return find_program(name, search_path);
  } catch (const Error&) {
    return {};
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
  stack.text = stack_of_proc(tools.proc, pid);
  if (!stack.text.empty()) stack.tool = "proc";
  return stack;
}

}  // namespace ddp::launcher
