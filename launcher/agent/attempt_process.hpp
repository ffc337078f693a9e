// Starts the process in which an attempt runs, and learns of its end.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "agent/node_job.hpp"
#include "base/unique_fd.hpp"
#include "control/connection.hpp"

namespace ddp::launcher {

/// A child process that runs Attempt. It is made by fork without exec, so the calling process must have no other
/// threads, and it inherits no descriptor but the standard ones and its connection. Destruction kills it.
class AttemptProcess {
 public:
  /// Throws Error(system) when no process can be made.
  AttemptProcess(const NodeJob& job, const control::PrepareAttempt& plan);
  AttemptProcess(const AttemptProcess&) = delete;
  AttemptProcess& operator=(const AttemptProcess&) = delete;
  ~AttemptProcess();

  int attempt() const { return attempt_; }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  ///< readable once it has ended
  control::Connection& connection() { return *connection_; }

  /// "was killed by SIGKILL", "ended with exit code 1"; empty while it runs.
  std::string how_it_ended();
  /// Waits for its end until @p deadline.
  bool wait(Deadline deadline);

 private:
  int attempt_;
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  std::optional<control::Connection> connection_;  ///< always set
  std::string end_;
};

}  // namespace ddp::launcher
