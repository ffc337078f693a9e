// Hands on what is typed at a terminal to a program that may not read it itself: one in a process group of its own.
#pragma once

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Starts a thread that copies standard input, line by line as the terminal gives it, into a pipe until its end
/// (Ctrl-D). While this process is in the background it reads nothing. @return the end to read from. Throws
/// Error(system).
base::UniqueFd relay_terminal();

}  // namespace ddp::launcher
