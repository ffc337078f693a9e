// `ddp-info topo`: asks the machine or the job, and prints.
#pragma once

#include "topo/options.hpp"

namespace ddp::tools {

/// Returns normally on success; in a job, ranks other than 0 print nothing. Throws Error, and UsageError for options
/// that do not fit the machine or the job.
void run_topo(const TopoOptions& options);

}  // namespace ddp::tools
