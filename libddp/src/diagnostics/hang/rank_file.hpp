// Files that a rank's environment names: as the rank sees them, and only its user's. Who looks may be root, and the
// rank anybody's.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "base/unique_fd.hpp"

namespace ddp::diagnostics {

/// Opens @p path, absolute or relative to the rank's working directory, in the root directory of process @p pid: links
/// do not lead out of it. Empty unless it is of @p type (S_IFREG, S_IFIFO), belongs to the process's user, and opens
/// without waiting. @param proc "/proc".
base::UniqueFd open_rank_file(const std::string& proc, pid_t pid, const std::string& path, mode_t type, int flags);

}  // namespace ddp::diagnostics
