// The owner of a child process: no path out of a scope leaves one running or a zombie.
#pragma once

#include <sys/types.h>

#include <optional>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::base {

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
  /// Readable once the process has ended. Throws Error(system): pidfd_open(2) needs Linux 5.3.
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
  /// Gives the process up: the caller reaps it. Returns the pidfd. Throws as pidfd().
  UniqueFd release();

 private:
  void swap(ChildProcess& other) noexcept;

  pid_t pid_ = -1;
  UniqueFd pidfd_;  ///< opened when it is first needed
  std::optional<ProcessEnd> end_;
};

}  // namespace ddp::base
