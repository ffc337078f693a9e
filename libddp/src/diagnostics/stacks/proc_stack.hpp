// What the kernel says about a process in /proc: where no tool can read its stack.
#pragma once

#include <sys/types.h>

#include <string>

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

}  // namespace ddp::diagnostics
