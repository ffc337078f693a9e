// The folder for temporary files, where TMPDIR is not there: of a job that has ended, or of the host while in a
// container.
#pragma once

#include <string>

#include "base/env_table.hpp"

namespace ddp::launcher {

/// TMPDIR, or /tmp.
std::string temporary_folder(const base::Environment& environment);

/// Takes TMPDIR out of @p environment, and out of this process's, where no folder of that name is on this host, so that
/// all use /tmp, as Python's tempfile does. Call it before there are threads. @return what to tell the user; else empty
std::string leave_missing_temporary_folder(base::Environment& environment);

}  // namespace ddp::launcher
