// What the kernel says about a process in /proc: where no tool can read its stack.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::diagnostics {

/// For each thread its name, state, the kernel function in which it sleeps and the number of its system call, as far as
/// the kernel tells this user; with equal threads once. Empty when the process is gone. @param proc "/proc".
std::string stack_of_proc(const std::string& proc, pid_t pid);

/// Whether it executes a Python interpreter.
bool runs_python(const std::string& proc, pid_t pid);

/// The process whose stack matters: where @p pid is a shell that waits for its only child, that child, and so on.
pid_t below_shells(const std::string& proc, pid_t pid);

/// /proc/sys/kernel/yama/ptrace_scope; 0 where there is none.
int yama_scope(const std::string& proc);

// What tools say about a process, made equal for processes that stand at the same place: without process ids, addresses
// and what differs between ranks, so that the stacks of many ranks can be shown as one.

/// Limit of one rank's text in bytes; the rest is left out.
inline constexpr std::size_t kMaxStackBytes = std::size_t{64} << 10U;

struct ThreadStack {
  std::string name;
  std::vector<std::string> frames{};  ///< innermost first
};

/// One line per frame below one for the thread; threads with equal frames once, as "16 threads "pt_autograd_0", ...".
/// Empty without frames.
std::string format_threads(const std::vector<ThreadStack>& threads);

/// Of `gdb -batch -ex 'thread apply all bt'` and of `py-spy dump`: empty where they have no stack.
std::string stack_of_gdb(std::string_view output);
std::string stack_of_py_spy(std::string_view output);

/// The innermost frames of Python's main thread in what stack_of_py_spy() gives: "load (train.py:7), called by <module>
/// (train.py:9)". Empty where it has none.
std::string main_frames(std::string_view stack);

/// What a tool that failed gives as the reason, on one line; @p output is its standard error.
std::string reason_of(std::string_view output);

}  // namespace ddp::diagnostics
