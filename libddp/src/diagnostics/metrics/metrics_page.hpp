// An answer to Prometheus, in its text format 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::diagnostics {

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
