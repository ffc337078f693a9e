#include "diagnostics/metrics/metrics_page.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

void append_label(std::string& line, std::string_view name, std::string_view value) {
  line += name;
  line += "=\"";
  for (const char letter : value) {
    switch (letter) {
      case '\\': line += "\\\\"; break;
      case '"': line += "\\\""; break;
      case '\n': line += "\\n"; break;
      // the format wants UTF-8, which names that others gave need not be
      default: line += letter >= ' ' && letter < 0x7f ? letter : '?';
    }
  }
  line += '"';
}

}  // namespace

MetricsPage::MetricsPage(std::string_view job, std::string_view node) {
  append_label(common_, "job", job);
  common_ += ',';
  append_label(common_, "node", node);
}

void MetricsPage::add(Metric metric, double value, std::initializer_list<Label> labels) {
  const auto index = static_cast<std::size_t>(metric);
  std::string& lines = lines_.at(index);
  lines += metric_table()[index].name;
  lines += '{';
  lines += common_;
  for (const auto& [name, text] : labels) {
    lines += ',';
    append_label(lines, name, text);
  }
  // the shortest text that reads as the same number; whole ones without an exponent
  if (std::abs(value) < 1e15 && value == std::floor(value)) {
    fmt::format_to(std::back_inserter(lines), "}} {:.0f}\n", value);
  } else {
    fmt::format_to(std::back_inserter(lines), "}} {}\n", value);
  }
}

std::string MetricsPage::text() const {
  std::string text;
  for (std::size_t i = 0; i < kMetrics; ++i) {
    if (lines_.at(i).empty()) continue;
    const MetricRow& row = metric_table()[i];
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", row.name, row.help,
                        row.kind == MetricKind::counter ? "counter" : "gauge");
    text += lines_.at(i);
  }
  return text;
}

std::string user_name() {
  for (const char* name : {"SLURM_JOB_USER", "USER"}) {
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return std::to_string(::geteuid());
}

}  // namespace ddp::diagnostics
