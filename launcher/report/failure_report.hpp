// The text on standard error about a job that failed: the root cause first.
#pragma once

#include <string>
#include <vector>

#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

/// What the report says besides the outcome.
struct ReportContext {
  std::string program;
  int attempt = 0;  ///< of this outcome
  int restarts_used = 0;
  int max_restarts = 0;
  int num_nodes = 1;
  int world_size = 0;
  std::vector<GenerationFacts> generations{};  ///< all; empty: there is only the first
  std::string launcher = "ddprun";             ///< who says so
  std::string ended_by = "ddprun";             ///< who has ended the other ranks
};

/// In torchrun's layout, but with the root cause before the other failures: visible without scrolling, and kept by a
/// log that is cut at its end. At most 16 other failures are listed; ranks that ddprun ended are only counted. One line
/// for a job that a signal or --timeout ended; empty for success.
std::string format_failure_report(const JobOutcome& outcome, const ReportContext& context);

/// @p report with its root cause in bold red, for a terminal.
std::string highlighted(std::string report);

/// One line about an attempt that failed and is followed by another: "attempt 0 failed: rank 3 on n1 exited with 85;
/// restarting (restart 1 of at most 2)". @p restart: the number of the one that follows, from 1.
std::string format_restart_line(const JobOutcome& outcome, int attempt, int restart, int max_restarts);

/// "n2 waits as a spare".
std::string parked_text(const RosterChange& change);

/// The same where no restart is spent: "n5 joined; 3 of 3 nodes continue with it (generation 5, no restart spent)", or
/// "node n2: the connection to ddprun's agent on n2 (pid 7) was lost: it was closed; 3 of 4 nodes continue with n5
/// ...".
/// @param generation the one that follows
std::string format_going_on_line(const JobOutcome& outcome, int generation, const RosterChange& change);

}  // namespace ddp::launcher
