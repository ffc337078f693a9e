// `ddp-info flight`: what the ranks of a job called last, by the files that their flight recorders left, as text and as
// JSON.
#pragma once

#include <span>
#include <string>

#include "cli/option_table.hpp"
#include "flight/analysis.hpp"
#include "flight/rank_dump.hpp"

namespace ddp::tools::flight {

std::string text_report(const DumpFolder& folder, const Analysis& analysis);

/// Its schema, "ddp-info-flight/1", is in docs/reference/ddp-info.md.
std::string json_report(const DumpFolder& folder, const Analysis& analysis);

struct FlightOptions {
  std::string folder;
  bool json = false;
  std::string help{};  ///< what --help prints, if it is given
};

cli::OptionTable flight_table(FlightOptions& options);

/// @param arguments those after the word "flight". Throws cli::UsageError.
FlightOptions parse_flight_options(std::span<const std::string> arguments);

/// Writes the report to standard output. Throws Error.
void run_flight(const FlightOptions& options);

}  // namespace ddp::tools::flight
