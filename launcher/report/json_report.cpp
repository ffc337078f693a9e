// Writes the outcome of a job as JSON.
#include "report/json_report.hpp"

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/files.hpp"
#include "report/outcome_json.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {

std::string format_json_report(const JobOutcome& outcome, const ReportContext& context, const JobTimes& times) {
  Json document = {{"schema", kReportSchema},
                   {"libddp", DDP_VERSION_STRING},
                   {"program", context.program},
                   {"success", outcome.success()},
                   {"exit_status", outcome.exit_status()},
                   {"root_cause", root_cause_json(outcome)},
                   {"attempt", context.attempt},
                   {"max_restarts", context.max_restarts},
                   {"num_nodes", context.num_nodes},
                   {"world_size", context.world_size},
                   {"start", time_text(times.start)},
                   {"seconds_until_started", seconds(times.until_started)},
                   {"seconds_total", seconds(times.total)}};
  document["generations"] = Json::array();
  for (const GenerationFacts& each : context.generations) document["generations"].push_back(generation_json(each));
  document.update(outcome_json(outcome));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void check_report_file(const std::string& path) {
  base::check_file(
      base::WholeFile{.path = path, .attempted = fmt::format("checking that --report-json={} can be written", path)});
}

void write_report_file(const std::string& path, const std::string& text, std::chrono::milliseconds write_limit) {
  base::write_file(
      base::WholeFile{.path = path, .attempted = fmt::format("writing --report-json={}", path), .limit = write_limit},
      text);
}

}  // namespace ddp::launcher
