// Raises ddprun's descriptor limit, which its workers must not notice.
#pragma once

#include <sys/resource.h>

namespace ddp::launcher {

/// Raises this process's soft limit of open files (RLIMIT_NOFILE) to what @p num_ranks ranks need, and returns the
/// previous limit for the workers: programs that use select(2) rely on a low one. Throws Error(system)
/// when the hard limit is too low, with the number of ranks that it allows.
rlimit raise_descriptor_limit(int num_ranks);

/// Makes room for @p connections besides @p num_ranks ranks; warns on standard error where the hard limit is too low.
void allow_connections(rlim_t connections, int num_ranks);

}  // namespace ddp::launcher
