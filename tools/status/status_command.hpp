// `ddp-info status`: who hangs in a running job, seen from outside, on this host or on all nodes of a Slurm job.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "cli/option_table.hpp"
#include "diagnostics/hang/process_table.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::tools::status {

struct SlurmHosts {
  std::vector<diagnostics::HostFacts> hosts{};
  std::vector<std::string> notes;
  int nodes = 0;  ///< of the job; those that have answered may be fewer
};

/// @param job "17" or "17.0". Throws Error: not_found, also where another user's job is hidden; unavailable without
/// Slurm and for another user's job.
SlurmHosts ask_slurm_hosts(const std::string& job, bool stacks, Deadline deadline);

inline constexpr int kCannotTell = 2;

struct StatusOptions {
  std::string help{};  ///< what --help prints, if it is given
  bool json = false;
  bool stacks = false;
  bool facts = false;      ///< of this host alone, for the process that asked for them
  std::string unresolved;  ///< "17": a process of this host, else a job of Slurm
  diagnostics::StatusTarget target;
  double after_s = 5;                  ///< how long an operation must have waited to count
  std::chrono::milliseconds limit{0};  ///< of the whole; 0: by what is asked for
};

cli::OptionTable status_table(StatusOptions& options);

/// @param arguments those after the word "status". Throws cli::UsageError.
StatusOptions parse_status_options(std::span<const std::string> arguments);

/// Prints what is known. Returns the exit status: 0 nothing hangs, 1 a rank is missing or hangs, 2 it cannot tell.
/// Throws Error.
int run_status(StatusOptions options);

}  // namespace ddp::tools::status
