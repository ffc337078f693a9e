// Runs a job from the command line to the exit status.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// Call it once, from the main thread, before there are others.
/// @param arguments the command line without the program's name, for agents on other nodes.
/// @return ddprun's exit status. Throws Error when the job could not be started; it leaves nothing then.
int launch(LaunchOptions options, base::Environment environment, const std::vector<std::string>& arguments);

// The folder for temporary files, where TMPDIR is not there: of a job that has ended, or of the host while in a
// container.

/// TMPDIR, or /tmp.
std::string temporary_folder(const base::Environment& environment);

/// Takes TMPDIR out of @p environment, and out of this process's, where no folder of that name is on this host, so that
/// all use /tmp, as Python's tempfile does. Call it before there are threads. @return what to tell the user; else empty
std::string leave_missing_temporary_folder(base::Environment& environment);

}  // namespace ddp::launcher
