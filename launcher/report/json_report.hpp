// --report-json: the report of failure_report.hpp, and of success, for programs.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "outcome/job_outcome.hpp"
#include "report/failure_report.hpp"

namespace ddp::launcher {

/// The document's format; the number changes when a field is removed or changes its meaning, not when one is added.
inline constexpr std::string_view kReportSchema = "ddprun-report/1";

struct JobTimes {
  std::chrono::system_clock::time_point start;
  std::chrono::milliseconds until_started;  ///< command to all workers of the first attempt running
  std::chrono::milliseconds total;
};

/// A JSON object; docs/reference/ddprun.md describes its fields. Texts are made UTF-8. Unlike the text
/// report, it lists all failures.
std::string format_json_report(const JobOutcome& outcome, const ReportContext& context, const JobTimes& times);

/// Throws Error(system) when @p path cannot be opened for writing: checked before anything is started.
void check_report_file(const std::string& path);
/// Replaces the file as a whole (written beside it, then renamed; a device or pipe is written to directly).
/// Throws Error(system).
void write_report_file(const std::string& path, const std::string& text,
                       std::chrono::milliseconds write_limit = std::chrono::seconds(5));

}  // namespace ddp::launcher
