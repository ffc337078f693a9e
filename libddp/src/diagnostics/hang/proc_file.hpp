// What /proc says of a process, as far as the kernel lets this user read it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddp::diagnostics {

struct ProcStat {
  char state = 'X';  ///< of the main thread; X: the process is gone
  pid_t parent = 0;
  std::uint64_t ticks = 0;           ///< processors' time of all threads, in clock ticks
  std::uint64_t children_ticks = 0;  ///< of children that have ended and were waited for
  std::uint64_t start_ticks = 0;     ///< when it began, since the host did, in clock ticks
  std::uint64_t resident_pages = 0;
  std::uint64_t major_faults = 0;  ///< pages that were read from disk
  bool kernel_thread = false;
};
ProcStat read_stat(const std::string& proc, pid_t pid);

/// Of all its threads.
std::vector<pid_t> read_children(const std::string& proc, pid_t pid);

/// As it was at exec.
std::map<std::string, std::string> read_environment(const std::string& proc, pid_t pid);

/// The name of the program, of an interpreter's script with it: "python3 train.py".
std::string read_program(const std::string& proc, pid_t pid);

/// The system call of the main thread: "futex", "number 999"; empty: none, or not readable (Yama).
std::string read_system_call(const std::string& proc, pid_t pid);
/// The kernel function in which the main thread sleeps; empty: none.
std::string read_kernel_function(const std::string& proc, pid_t pid);

/// Whether the file of a library with this beginning of its name is mapped.
bool maps_library(const std::string& proc, pid_t pid, const std::string& name);

}  // namespace ddp::diagnostics
