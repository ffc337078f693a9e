// DDP_FLIGHT_SIGNAL: a dump of the flight recorder of a running process, without a debugger and without its help.
#pragma once

#include "base/env_table.hpp"

namespace ddp::collectives {

/// Installs the handler and starts the thread that does its work, at the first call with DDP_FLIGHT_SIGNAL; they stay
/// until the process ends. Throws Error: invalid_argument for a wrong variable, or without DDP_FLIGHT_DIR; conflict if
/// the program handles the signal itself.
void obey_flight_signal(const base::Environment& environment);

}  // namespace ddp::collectives
