// Starts the process in which an attempt runs.
#pragma once

#include <optional>

#include "agent/job_layout.hpp"
#include "base/process.hpp"
#include "control/connection.hpp"

namespace ddp::launcher {

/// A child process that runs Attempt, and the connections to it. Destruction kills it.
struct AttemptProcess {
  control::Connection connection;
  std::optional<control::Connection> console{};  ///< what its ranks write, where the coordinator writes the console
  base::ChildProcess process;                    ///< last: it is killed before it could miss its agent
};

/// Makes it by fork without exec, so the calling process must have no other threads. It inherits no descriptor but the
/// standard ones and its connections. Throws Error(system) when no process can be made.
AttemptProcess start_attempt_process(const NodeJob& job, const control::PrepareAttempt& plan);

/// The same for a process that gets its plan later, as the first message (Standby). @param like a plan like it.
AttemptProcess start_standby_process(const NodeJob& job, const control::PrepareAttempt& like, bool first);

}  // namespace ddp::launcher
