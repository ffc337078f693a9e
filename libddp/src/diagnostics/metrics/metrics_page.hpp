// An answer to Prometheus, in its text format 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "diagnostics/metrics/metric_table.hpp"

namespace ddp::diagnostics {

/// Collects values in any order. Not thread-safe.
class MetricsPage {
 public:
  using Label = std::pair<std::string_view, std::string_view>;

  /// Labels of each line; any text.
  MetricsPage(std::string_view job, std::string_view node);

  void add(Metric metric, double value, std::initializer_list<Label> labels = {});

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
