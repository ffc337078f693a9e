#include "diagnostics/stacks/proc_stack.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/files.hpp"

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

namespace {

constexpr std::size_t kMaxReasonBytes = 200;
constexpr int kMostMainFrames = 3;

template <class Use>
void for_each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    use(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

std::string_view trimmed_line(std::string_view line) {
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
  return line;
}

/// The name in quotation marks: `Thread 1 (Thread 0x7f.. (LWP 7) "python3"):`, `Thread 7 (idle): "MainThread"`.
std::string quoted(std::string_view line) {
  const std::size_t begin = line.find('"');
  const std::size_t end = line.rfind('"');
  return begin == end ? std::string{} : std::string{line.substr(begin + 1, end - begin - 1)};
}

/// Without "0x00007f12 in ", which gdb prints where it has no lines, even if addresses are off in newer versions.
std::string without_address(std::string_view frame) {
  const std::size_t begin = frame.find("0x");
  const std::size_t end = frame.find(" in ");
  if (begin == std::string_view::npos || end == std::string_view::npos || begin > end || begin > 8)
    return std::string{frame};
  return std::string{frame.substr(0, begin)} + std::string{frame.substr(end + 4)};
}

/// "#1  _ZN3c104funcEi () from libc10.so": the name as the source has it.
std::string demangled(const std::string& frame) {
  const std::size_t begin = frame.find(" _Z");
  if (begin == std::string::npos) return frame;
  const std::size_t end = std::min(frame.find_first_of(" @", begin + 1), frame.size());
  const std::string name = frame.substr(begin + 1, end - begin - 1);
  int status = -1;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? frame.substr(0, begin + 1) + text.get() + frame.substr(end) : frame;
}

bool has_frames(const std::vector<ThreadStack>& threads) {
  return std::any_of(threads.begin(), threads.end(), [](const ThreadStack& each) { return !each.frames.empty(); });
}

}  // namespace

std::string format_threads(const std::vector<ThreadStack>& threads) {
  if (!has_frames(threads)) return {};
  std::vector<std::pair<const ThreadStack*, int>> distinct;
  for (const ThreadStack& thread : threads) {
    const auto known = std::find_if(distinct.begin(), distinct.end(),
                                    [&](const auto& each) { return each.first->frames == thread.frames; });
    if (known == distinct.end()) {
      distinct.emplace_back(&thread, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [thread, count] : distinct) {
    const std::string name = thread->name.empty() ? std::string{} : fmt::format(" \"{}\"", thread->name);
    text += count == 1 ? fmt::format("thread{}\n", name) : fmt::format("{} threads{}, ...\n", count, name);
    for (const std::string& frame : thread->frames) text += fmt::format("  {}\n", frame);
  }
  text.pop_back();
  if (text.size() > kMaxStackBytes) {
    text.resize(text.rfind('\n', kMaxStackBytes));
    text += "\n... (too long)";
  }
  return text;
}

std::string stack_of_gdb(std::string_view output) {
  std::vector<ThreadStack> threads;
  for_each_line(output, [&](std::string_view line) {
    line = trimmed_line(line);
    if (line.starts_with("Thread ") && line.ends_with(':')) {
      threads.push_back({.name = quoted(line)});
    } else if (!threads.empty() && (line.starts_with('#') || line.starts_with("(More stack frames"))) {
      threads.back().frames.push_back(demangled(without_address(line)));
    }
  });
  return format_threads(threads);
}

std::string stack_of_py_spy(std::string_view output) {
  std::vector<ThreadStack> threads;
  for_each_line(output, [&](std::string_view line) {
    if (line.starts_with("Thread ")) {
      threads.push_back({.name = quoted(line)});
    } else if (!threads.empty() && line.starts_with("    ")) {
      threads.back().frames.emplace_back(trimmed_line(line));
    }
  });
  return format_threads(threads);
}

std::string main_frames(std::string_view stack) {
  std::string text;
  int frames = -1;  // not there yet
  for_each_line(stack, [&](std::string_view line) {
    if (!line.starts_with("  ")) {
      frames = frames < 0 && line.find("\"MainThread\"") != line.npos ? 0 : frames < 0 ? -1 : kMostMainFrames;
    } else if (frames >= 0 && frames++ < kMostMainFrames) {
      text += fmt::format("{}{}", text.empty() ? "" : ", called by ", trimmed_line(line));
    }
  });
  return text;
}

std::string reason_of(std::string_view output) {
  std::string_view reason;
  bool certain = false;
  for_each_line(output, [&](std::string_view line) {
    line = trimmed_line(line);
    if (line.empty() || certain) return;
    reason = line;
    for (const std::string_view word : {"permitted", "ermission", "Error:"})
      certain = certain || line.find(word) != line.npos;
  });
  std::string text{reason.substr(0, kMaxReasonBytes)};
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; }, '?');
  return text;
}

}  // namespace ddp::diagnostics
