// Starts the process in which an attempt runs.
#pragma once

#include "agent/node_job.hpp"
#include "base/child_process.hpp"
#include "control/connection.hpp"

namespace ddp::launcher {

/// A child process that runs Attempt, and the connection to it. Destruction kills it.
struct AttemptProcess {
  control::Connection connection;
  base::ChildProcess process;  ///< last: it is killed before it could miss its agent
};

/// Makes it by fork without exec, so the calling process must have no other threads. It inherits no descriptor but the
/// standard ones and its connection. Throws Error(system) when no process can be made.
AttemptProcess start_attempt_process(const NodeJob& job, const control::PrepareAttempt& plan);

}  // namespace ddp::launcher
