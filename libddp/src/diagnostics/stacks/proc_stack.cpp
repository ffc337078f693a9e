#include "diagnostics/stacks/proc_stack.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/whole_file.hpp"
#include "diagnostics/stacks/stack_text.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> kShells{"sh", "bash", "dash", "ksh", "zsh", "busybox"};
constexpr int kDeepestShell = 8;
constexpr std::size_t kMostThreads = 4096;

std::string content_of(const std::string& path) { return base::read_file(path).value_or(std::string{}); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// "S (sleeping)" of "State:\tS (sleeping)".
std::string field_of(const std::string& status, std::string_view name) {
  const std::size_t begin = status.find(fmt::format("{}:\t", name));
  if (begin == std::string::npos) return {};
  return first_line(status.substr(begin + name.size() + 2));
}

std::string exe_of(const std::string& proc, pid_t pid) {
  std::error_code ignored;
  return fs::read_symlink(fmt::format("{}/{}/exe", proc, pid), ignored).filename();
}

/// As a thread's frames: its state, then the kernel's stack, innermost first, or the function it waits in.
ThreadStack thread_at(const std::string& folder) {
  const std::string status = content_of(folder + "/status");
  ThreadStack thread{.name = field_of(status, "Name")};
  if (thread.name.empty()) return thread;
  std::string state = fmt::format("state {}", field_of(status, "State"));
  // "running", or "230 0x0 ..."
  const std::string call = content_of(folder + "/syscall");
  if (const std::size_t end = call.find(' '); end != std::string::npos && call.find_first_not_of("0123456789") == end)
    state += fmt::format(", in system call {}", call.substr(0, end));
  thread.frames.push_back(std::move(state));
  const std::string stack = content_of(folder + "/stack");  // for root only
  for (std::size_t begin = 0; begin < stack.size();) {
    const std::size_t end = std::min(stack.find('\n', begin), stack.size());
    std::string line = stack.substr(begin, end - begin);
    if (line.starts_with("[<0>] ")) line.erase(0, 6);
    if (!line.empty()) thread.frames.push_back(fmt::format("kernel: {}", line));
    begin = end + 1;
  }
  const std::string function = first_line(content_of(folder + "/wchan"));
  if (thread.frames.size() == 1 && !function.empty() && function != "0")
    thread.frames.push_back(fmt::format("kernel: {}", function));
  return thread;
}

}  // namespace

std::string stack_of_proc(const std::string& proc, pid_t pid) {
  std::vector<int> ids;
  std::error_code status;
  const std::string folder = fmt::format("{}/{}/task", proc, pid);
  for (fs::directory_iterator entry{folder, status}, end; !status && entry != end && ids.size() < kMostThreads;
       entry.increment(status)) {
    const std::string name = entry->path().filename();
    int id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec == std::errc{}) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  std::vector<ThreadStack> threads;
  for (const int id : ids) {
    ThreadStack thread = thread_at(fmt::format("{}/{}", folder, id));
    if (!thread.frames.empty()) threads.push_back(std::move(thread));
  }
  return format_threads(threads);
}

bool runs_python(const std::string& proc, pid_t pid) {
  if (exe_of(proc, pid).starts_with("python")) return true;
  return content_of(fmt::format("{}/{}/maps", proc, pid)).find("/libpython") != std::string::npos;
}

pid_t below_shells(const std::string& proc, pid_t pid) {
  for (int depth = 0; depth < kDeepestShell; ++depth) {
    const std::string exe = exe_of(proc, pid);
    if (std::find(kShells.begin(), kShells.end(), exe) == kShells.end()) return pid;
    const std::string children = content_of(fmt::format("{0}/{1}/task/{1}/children", proc, pid));
    pid_t child = 0;
    const auto [end, error] = std::from_chars(children.data(), children.data() + children.size(), child);
    const bool only_one = error == std::errc{} && end + 1 >= children.data() + children.size();
    if (!only_one) return pid;
    pid = child;
  }
  return pid;
}

int yama_scope(const std::string& proc) {
  const std::string text = content_of(proc + "/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  std::from_chars(text.data(), text.data() + text.size(), scope);
  return scope;
}

}  // namespace ddp::diagnostics
