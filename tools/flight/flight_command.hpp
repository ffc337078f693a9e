// `ddp-info flight DIR`.
#pragma once

#include "flight/options.hpp"

namespace ddp::tools::flight {

/// Writes the report to standard output. Throws Error.
void run_flight(const FlightOptions& options);

}  // namespace ddp::tools::flight
