// Processes: children with a deadline, whether a numbered process still lives, signals by name.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "base/message_fields.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {

// The owner of a child process: no path out of a scope leaves one running or a zombie.

struct ProcessEnd {
  int code = -1;  ///< exit code, or the number of a signal; -1: unknown, another part of this process reaped it
  bool by_signal = false;  ///< code is a signal

  /// As a shell reports it: the exit code, or 128 + signal; -1: unknown.
  int shell_status() const { return by_signal ? 128 + code : code; }
  bool operator==(const ProcessEnd&) const = default;
};

/// Destruction kills and reaps the process. Move-only; empty by default. Not thread-safe.
class ChildProcess {
 public:
  ChildProcess() = default;
  /// @param pid from fork(2) or posix_spawn(3)
  explicit ChildProcess(pid_t pid) noexcept : pid_(pid) {}
  ChildProcess(ChildProcess&& other) noexcept { swap(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { kill(); }

  /// Whether it has a process, which may have ended.
  explicit operator bool() const noexcept { return pid_ > 0; }
  pid_t pid() const noexcept { return pid_; }
  /// Readable once the process has ended. Where there is no pidfd_open(2) (Linux before 5.3, filters of containers), a
  /// thread waits for it. Throws Error(system).
  int pidfd();

  /// How it ended; nothing while it runs, and for an empty object.
  std::optional<ProcessEnd> end() noexcept;
  /// Waits for the end. False at @p deadline. Before Linux 5.3 it notices an end up to 5 ms late.
  bool wait(Deadline deadline) noexcept;
  /// Does nothing once it has ended.
  void signal(int number) noexcept;
  /// SIGTERM, and from @p deadline on kill().
  bool terminate(Deadline deadline) noexcept;
  /// SIGKILL. False where the kernel cannot end it within 5 s (uninterruptible sleep); then it is given up.
  bool kill() noexcept;
  /// Gives the process up: the caller reaps it. Returns pidfd(). Throws as pidfd().
  UniqueFd release();

 private:
  void swap(ChildProcess& other) noexcept;

  pid_t pid_ = -1;
  UniqueFd pidfd_;  ///< opened when it is first needed
  std::optional<ProcessEnd> end_;
};

// Whether another process of this host runs, as the kernel has it: one that is stopped and one that waits for a
// processor are equally silent.

/// How processes of one host find each other in /proc.
struct ProcessNumber {
  pid_t pid = 0;
  std::uint64_t space = 0;  ///< the PID namespace in which it has that number; 0: unknown, or /proc is of another one
  bool operator==(const ProcessNumber&) const = default;
};
constexpr auto description(const ProcessNumber*) {
  return describe({"process"}, fields<&ProcessNumber::pid, &ProcessNumber::space>());
}

enum class ProcessLife {
  unknown,  ///< it is in another namespace, or /proc is not readable
  runs,     ///< or sleeps, or waits for a processor, memory or a disk
  stopped,  ///< by a signal or a debugger
  gone,
};

ProcessNumber own_process();
ProcessLife life_of(const ProcessNumber& process);

// Names of signals.

/// "SIGTERM" for SIGTERM, "SIGRTMIN+3" for real-time signals.
std::string signal_name(int signal);

}  // namespace ddp::base
