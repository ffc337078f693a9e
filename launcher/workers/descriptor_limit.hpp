// ddprun needs a few file descriptors per rank; its workers must not notice.
#pragma once

#include <sys/resource.h>

namespace ddp::launcher {

/// Raises this process's soft limit of open files (RLIMIT_NOFILE) to what @p num_ranks ranks need, and returns the
/// limit as it was, which workers must get back: programs that use select(2) rely on a low one. Throws Error(system)
/// when the hard limit is too low, with the number of ranks that it allows.
rlimit raise_descriptor_limit(int num_ranks);

/// Makes room for @p connections besides @p num_ranks ranks, as far as the hard limit allows; a warning on standard
/// error where that is not far enough.
void allow_connections(rlim_t connections, int num_ranks);

}  // namespace ddp::launcher
