// How a frontend waits for srun or ssh after its job.
#pragma once

#include <functional>
#include <string>

#include <ddp/deadline.hpp>

#include "coordinator/coordinator.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

struct RunningLaunchers {
  std::string name;  ///< "srun"
  std::function<bool()> ended;
  std::function<void(Deadline)> end;  ///< SIGTERM, SIGKILL at the deadline
};

/// Standard output and standard error, which are the launchers', too, take more.
bool readers_keep_up();

/// They may still hold output of agents for a slow reader; signals shorten the wait. Else they wait for nodes or for
/// Slurm: where a signal, --timeout or a failure ends the job, no longer than any other part of the end.
void end_launchers(stream::EventLoop& loop, Coordinator& coordinator, const RunningLaunchers& launchers);

}  // namespace ddp::launcher
