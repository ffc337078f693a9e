// The command line of `ddp-info status`, after it has been checked.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "diagnostics/hang/process_table.hpp"

namespace ddp::tools::status {

struct StatusOptions {
  bool help = false;
  bool json = false;
  bool stacks = false;
  bool facts = false;      ///< of this host alone, for the process that asked for them
  std::string unresolved;  ///< "17": a process of this host, else a job of Slurm
  diagnostics::StatusTarget target;
  double after_s = 5;                  ///< how long an operation must have waited to count
  std::chrono::milliseconds limit{0};  ///< of the whole; 0: by what is asked for
};

/// What --help prints.
extern const char* const kStatusHelp;

/// @param arguments those after the word "status". Throws UsageError.
StatusOptions parse_status_options(std::span<const std::string> arguments);

}  // namespace ddp::tools::status
