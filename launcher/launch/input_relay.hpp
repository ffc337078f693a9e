// Hands on standard input to a program that may not read it itself: one in a process group of its own, where it is a
// terminal, or one that got something else on its standard input before.
#pragma once

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Starts a thread that copies standard input into @p pipe, as it comes, until its end (at a terminal: Ctrl-D) or until
/// nobody reads the pipe any more. While this process is in a terminal's background it reads nothing. Throws
/// Error(system).
void relay_input(base::UniqueFd pipe);

/// The same into a new pipe. @return the end to read from
base::UniqueFd relay_input();

/// Whether standard input is closed or /dev/null.
bool input_is_empty();

}  // namespace ddp::launcher
