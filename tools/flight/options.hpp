// The command line of `ddp-info flight`.
#pragma once

#include <span>
#include <string>

namespace ddp::tools::flight {

struct FlightOptions {
  std::string folder;
  bool json = false;
  bool help = false;
};

/// What --help prints.
extern const char* const kFlightHelp;

/// @param arguments those after the word "flight". Throws UsageError.
FlightOptions parse_flight_options(std::span<const std::string> arguments);

}  // namespace ddp::tools::flight
