// The text that ddprun leaves on standard error when a job did not end well: the root cause first.
#pragma once

#include <string>

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
};

/// In torchrun's layout, but with the root cause before the other failures: a reader sees it without scrolling, and a
/// log that is cut at the end still has it. One for the whole job. At most 16 other failures are listed, and ranks that
/// ddprun ended itself are counted only. For a job that a signal to ddprun or --timeout ended, one line; empty for
/// success.
std::string format_failure_report(const JobOutcome& outcome, const ReportContext& context);

/// One line about an attempt that failed and is followed by another: "attempt 0 failed: rank 3 on n1 exited with 85;
/// restarting (2 restarts left)".
std::string format_restart_line(const JobOutcome& outcome, int attempt, int restarts_left);

}  // namespace ddp::launcher
