// The command line of `ddp-info trace`.
#pragma once

#include <span>
#include <string>

namespace ddp::tools::trace {

struct TraceOptions {
  std::string folder;
  bool align = true;
  bool help = false;
};

/// What --help prints.
extern const char* const kTraceHelp;

/// @param arguments those after the word "trace". Throws UsageError.
TraceOptions parse_trace_options(std::span<const std::string> arguments);

}  // namespace ddp::tools::trace
