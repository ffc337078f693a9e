// The text that ddprun leaves on standard error when a job did not end well: the root cause first.
#pragma once

#include <string>

#include "report/job_outcome.hpp"

namespace ddp::launcher {

/// What the report says besides the outcome.
struct ReportContext {
  std::string program;
  std::string host;
};

/// In torchrun's layout, but with the root cause before the other failures: a reader sees it without scrolling, and a
/// log that is cut at the end still has it. Ranks that ddprun ended itself are counted and not listed. For a job that a
/// signal to ddprun ended, one line; empty for success.
std::string format_failure_report(const JobOutcome& outcome, const ReportContext& context);

}  // namespace ddp::launcher
