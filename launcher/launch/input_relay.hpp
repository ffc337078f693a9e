// Hands on standard input to srun, where it is a terminal: srun is in a process group of its own, and may not read it.
#pragma once

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Starts a thread that copies standard input into a pipe, as it comes, until its end (at a terminal: Ctrl-D) or until
/// nobody reads the pipe any more. While this process is in a terminal's background it reads nothing. @return the end
/// to read from. Throws Error(system).
base::UniqueFd relay_input();

}  // namespace ddp::launcher
