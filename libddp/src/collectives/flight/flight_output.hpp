// Where dumps of this process's flight recorder go: files in DDP_FLIGHT_DIR.
#pragma once

#include <string>

#include <ddp/error.hpp>

#include "collectives/flight/flight_recorder.hpp"

namespace ddp::collectives {

/// Joins the recorder of this process; from the first group on, it obeys DDP_FLIGHT_SIGNAL. Throws
/// Error(invalid_argument) for wrong variables, DDP_FLIGHT_SIGNAL without DDP_FLIGHT_DIR among them.
std::shared_ptr<FlightGroup> join_flight_recorder(FlightGroupFacts facts);

/// Writes this process's file in DDP_FLIGHT_DIR, if that is set; the file of before is replaced. Takes some
/// milliseconds, but at most two seconds: a file system that hangs must not keep an error from its program. Failures
/// are logged.
void write_flight_file(const std::string& reason, const Error* failure = nullptr) noexcept;

/// The same for the first failure of each group, and nothing later. To be called before the group's operations are
/// finished, so that the file shows them as they were.
void record_failure(FlightGroup& group, const Error& failure) noexcept;

}  // namespace ddp::collectives
