// `ddp-info trace DIR`.
#pragma once

#include "trace/options.hpp"

namespace ddp::tools::trace {

/// Writes the merged trace to standard output, and what clocks were moved to standard error. Throws Error.
void run_trace(const TraceOptions& options);

}  // namespace ddp::tools::trace
