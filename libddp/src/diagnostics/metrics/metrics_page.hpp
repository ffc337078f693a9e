// An answer to Prometheus, in its text format 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message_fields.hpp"

namespace ddp::diagnostics {

// Turns the nodes' reports on their ranks' steps into what the event log says of the job's.

// How far the steps of a rank's Reducers are, as nodes tell whoever leads the job.

/// Since the rank's start (flight::FlightView::Sums).
struct StepProgress {
  int rank = 0;  ///< of the job
  std::int64_t steps = 0;
  std::int64_t step_ns = 0;
  std::int64_t communication_ns = 0;
  std::int64_t hidden_ns = 0;
  int straggler_rank = -1;  ///< -1: nobody looked
  std::int64_t straggler_delay_ns = 0;
  bool operator==(const StepProgress&) const = default;
};
constexpr auto description(const StepProgress*) {
  return base::describe({"StepProgress"}, base::fields<&StepProgress::rank>(base::kCount),
                        base::fields<&StepProgress::steps, &StepProgress::step_ns, &StepProgress::communication_ns,
                                     &StepProgress::hidden_ns, &StepProgress::straggler_delay_ns>(),
                        base::fields<&StepProgress::straggler_rank>(base::kCountOrNone));
}

/// Of all ranks that tell, since the line before.
struct ProgressFacts {
  int ranks = 0;
  std::int64_t least_steps = 0;  ///< since the attempt began, of the rank that has taken fewest
  std::int64_t most_steps = 0;
  std::optional<double> step_s;       ///< mean of all ranks' steps; nothing: no step ended
  std::optional<double> slowest_s;    ///< the mean of the rank whose steps took longest
  std::optional<double> hidden;       ///< share of communication, 0 to 1; nothing: none on processors
  std::optional<int> straggler_rank;  ///< nothing: nobody looked
  double straggler_delay_s = 0;
};

/// Not thread-safe.
class JobProgress {
 public:
  /// @return the facts once all @p nodes of the attempt have told, or one tells again, so that there is no more than a
  /// line for each interval.
  std::optional<ProgressFacts> add(int node, std::size_t nodes, int attempt, const std::vector<StepProgress>& ranks);

 private:
  ProgressFacts conclude();

  int attempt_ = -1;
  std::set<int> told_;                     ///< nodes, since the last line
  std::map<int, StepProgress> now_;        ///< by rank
  std::map<int, StepProgress> last_line_;  ///< by rank: as it was then
};

// The one table of the metrics that ddprun's agents show to Prometheus. The text of an answer, and the list
// in docs/reference/observability.md, come from it.

enum class MetricKind { gauge, counter, summary };

/// The order is that of the table.
enum class Metric : std::size_t {
  build_info,
  job_info,
  world_size,
  nodes,
  nodes_waiting,
  attempts,
  restarts,
  max_restarts,
  node_losses,
  attempt_start,
  ranks,
  rank_exits,
  rank_running,
  rank_cpu,
  rank_resident,
  rank_processes,
  rank_phase,
  operations,
  operation_bytes,
  last_operation,
  last_operation_age,
  operations_pending,
  oldest_operation_age,
  steps,
  step_time,
  last_step,
  last_step_age,
  communication_time,
  hidden_time,
  hidden_ratio,
  straggler_rank,
  straggler_delay,
  training_time,
  training_refused,
  scrapes,
};
inline constexpr std::size_t kMetrics = static_cast<std::size_t>(Metric::scrapes) + 1;

struct MetricRow {
  std::string_view name;  ///< "ddp_attempts_total"
  MetricKind kind;
  std::string_view labels;  ///< besides job and node: "rank", "rank, group"
  std::string_view help;    ///< one sentence, without quotes and line breaks
};

/// By Metric.
std::span<const MetricRow> metric_table();

/// As docs/reference/observability.md has it.
std::string metrics_markdown();

/// Collects values in any order. Not thread-safe.
class MetricsPage {
 public:
  using Label = std::pair<std::string_view, std::string_view>;

  /// Labels of each line; any text.
  MetricsPage(std::string_view job, std::string_view node);

  /// @param suffix of a summary's other lines: "_sum", "_count".
  void add(Metric metric, double value, std::initializer_list<Label> labels = {}, std::string_view suffix = {});

  /// Lines of a metric stand together, as the format wants, in the order of the table.
  std::string text() const;

 private:
  std::string common_;  ///< "job=\"17\",node=\"n0\""
  std::array<std::string, kMetrics> lines_;
};

/// Who runs this process: SLURM_JOB_USER, else USER of its environment, else its number. No directory service is asked,
/// which might not answer.
std::string user_name();

}  // namespace ddp::diagnostics
