#include "diagnostics/stacks/stack_tools.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/stacks/proc_stack.hpp"

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

namespace {

// A debugger's output for thousands of threads.
constexpr std::size_t kMaxOutputBytes = std::size_t{4} << 20U;
// For a killed tool to end; one that hangs in the kernel is given up.
constexpr std::chrono::seconds kKillLimit{2};
// For the threads that a killed debugger had stopped to wait again where they stood.
constexpr std::chrono::milliseconds kResume{100};

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

std::vector<char*> null_terminated(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Between vfork and exec, where other threads may hold any lock, and in their memory: async-signal-safe calls alone.
[[noreturn]] void become_tool(char* const* command, char* const* environment, pid_t parent, int out, int err,
                              int report) noexcept {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // that died before the prctl
  const int null_device = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_device >= 0) ::dup2(null_device, STDIN_FILENO);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0) ::execve(command[0], command, environment);
  const int number = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &number, sizeof number);
  ::_exit(127);
}

}  // namespace

ToolOutput run_tool(std::vector<std::string> command, std::vector<std::string> environment, Deadline deadline) {
  Pipe out, err, report;
  const std::vector<char*> arguments = null_terminated(command);
  const std::vector<char*> variables = null_terminated(environment);
  const pid_t own = ::getpid();
  const pid_t pid = [&] {
    const base::SignalsBlocked blocked;  // handlers of this process must not run in the child
    // A rank may call this: fork() would copy its page tables, and pages that a network adapter writes to.
    const pid_t child = ::vfork();  // NOLINT
    if (child == 0)
      become_tool(arguments.data(), variables.data(), own, out.write.get(), err.write.get(), report.write.get());
    return child;
  }();
  if (pid < 0) throw base::system_error(fmt::format("starting {}", command.front()), errno);
  base::ChildProcess process{pid};
  for (Pipe* pipe : {&out, &err, &report}) pipe->write.reset();

  ToolOutput said;
  std::string failure;
  std::array<pollfd, 3> streams{pollfd{.fd = out.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = err.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = report.read.get(), .events = POLLIN, .revents = 0}};
  const std::array<std::string*, 3> texts{&said.out, &said.err, &failure};
  const auto open = [&] { return streams[0].fd >= 0 || streams[1].fd >= 0 || streams[2].fd >= 0; };
  while (open() && !deadline.expired()) {
    if (::poll(streams.data(), streams.size(), deadline.poll_timeout_ms()) <= 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].revents != 0 && !read_some(streams[i].fd, *texts[i])) streams[i].fd = -1;
    }
  }
  said.in_time = !open();
  ::kill(-pid, SIGKILL);
  process.wait(Deadline::after(kKillLimit));
  if (failure.size() == sizeof(int)) {
    int number = 0;
    failure.copy(reinterpret_cast<char*>(&number), sizeof number);
    throw base::system_error(fmt::format("executing {}", command.front()), number);
  }
  if (!said.in_time) std::this_thread::sleep_for(kResume);
  return said;
}

}  // namespace ddp::diagnostics
