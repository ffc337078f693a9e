#include "diagnostics/metrics/metrics_page.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

namespace ddp::diagnostics {

std::optional<ProgressFacts> JobProgress::add(int node, std::size_t nodes, int attempt,
                                              const std::vector<StepProgress>& ranks) {
  if (attempt != attempt_) {
    *this = {};
    attempt_ = attempt;
  }
  std::optional<ProgressFacts> facts;
  if (told_.contains(node)) facts = conclude();
  told_.insert(node);
  for (const StepProgress& rank : ranks) now_[rank.rank] = rank;
  if (!facts && told_.size() >= nodes) facts = conclude();
  return facts;
}

ProgressFacts JobProgress::conclude() {
  ProgressFacts facts;
  std::int64_t steps = 0, step_ns = 0, communication_ns = 0, hidden_ns = 0;
  std::map<int, int> votes;  // by straggler
  for (const auto& [rank, now] : now_) {
    const StepProgress before = last_line_.contains(rank) ? last_line_.at(rank) : StepProgress{};
    facts.least_steps = facts.ranks == 0 ? now.steps : std::min(facts.least_steps, now.steps);
    facts.most_steps = std::max(facts.most_steps, now.steps);
    ++facts.ranks;
    const std::int64_t own_steps = now.steps - before.steps;
    const std::int64_t own_ns = now.step_ns - before.step_ns;
    if (own_steps > 0) {
      const double own_s = static_cast<double>(own_ns) / static_cast<double>(own_steps) / 1e9;
      facts.slowest_s = std::max(facts.slowest_s.value_or(own_s), own_s);
    }
    steps += own_steps;
    step_ns += own_ns;
    communication_ns += now.communication_ns - before.communication_ns;
    hidden_ns += now.hidden_ns - before.hidden_ns;
    if (now.straggler_rank >= 0) ++votes[now.straggler_rank];
  }
  if (steps > 0) facts.step_s = static_cast<double>(step_ns) / static_cast<double>(steps) / 1e9;
  if (communication_ns > 0)
    facts.hidden = std::clamp(static_cast<double>(hidden_ns) / static_cast<double>(communication_ns), 0.0, 1.0);
  const auto most = std::max_element(votes.begin(), votes.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most != votes.end()) {
    facts.straggler_rank = most->first;
    for (const auto& [rank, now] : now_) {
      if (now.straggler_rank != most->first) continue;
      facts.straggler_delay_s = std::max(facts.straggler_delay_s, static_cast<double>(now.straggler_delay_ns) / 1e9);
    }
  }
  last_line_ = now_;
  told_.clear();
  return facts;
}

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

void MetricsPage::add(Metric metric, double value, std::initializer_list<Label> labels, std::string_view suffix) {
  const auto index = static_cast<std::size_t>(metric);
  std::string& lines = lines_.at(index);
  lines += metric_table()[index].name;
  lines += suffix;
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
    constexpr std::array<std::string_view, 3> kKinds{"gauge", "counter", "summary"};
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", row.name, row.help,
                        kKinds.at(static_cast<std::size_t>(row.kind)));
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

namespace {

using enum MetricKind;

constexpr std::array<MetricRow, kMetrics> kTable{{
    {"ddp_build_info", gauge, "version", "1, with the version of libddp."},
    {"ddp_job_info", gauge, "program, user", "1, with the program and its user."},
    {"ddp_world_size", gauge, "", "Ranks of the job."},
    {"ddp_nodes", gauge, "", "Nodes of the job."},
    {"ddp_nodes_waiting", gauge, "", "Nodes that wait to join, or as spares."},
    {"ddp_attempts_total", counter, "", "Attempts to run the job, the current one included."},
    {"ddp_restarts_total", counter, "", "Restarts after a failure."},
    {"ddp_restarts_allowed", gauge, "", "Restarts that --max-restarts permits."},
    {"ddp_node_losses_total", counter, "", "Nodes that earlier attempts lost."},
    {"ddp_attempt_start_time_seconds", gauge, "", "When this attempt's ranks were started, since 1970."},
    {"ddp_ranks", gauge, "state",
     "This node's ranks that are starting, running, stopped by a signal, ended with 0, or failed."},
    {"ddp_rank_exits_total", counter, "code, signal",
     "Ends of this node's ranks in all attempts, by exit code or signal."},
    {"ddp_rank_running", gauge, "rank", "1, or 0 once the rank has ended."},
    {"ddp_rank_cpu_seconds_total", counter, "rank", "Processor time of the rank and its descendants."},
    {"ddp_rank_resident_bytes", gauge, "rank", "Memory of the rank and its descendants, shared pages in each."},
    {"ddp_rank_processes", gauge, "rank", "The rank and its descendants."},
    {"ddp_rank_phase", gauge, "rank", "How far World::init is: 0 not called, 1 wiring up, 2 wired up, 3 left."},
    {"ddp_operations_total", counter, "rank", "Operations of process groups that the rank called."},
    {"ddp_operation_bytes_total", counter, "rank", "Bytes of these operations, the larger of input and output."},
    {"ddp_last_operation", gauge, "rank, group", "Number of the rank's last collective in each of its first groups."},
    {"ddp_last_operation_age_seconds", gauge, "rank", "Time since the rank's last operation."},
    {"ddp_operations_pending", gauge, "rank", "Operations that have not ended."},
    {"ddp_oldest_operation_age_seconds", gauge, "rank",
     "How long the oldest pending operation has waited; 0 without one."},
    {"ddp_steps_total", counter, "rank", "Steps of the rank's Reducers that averaged gradients."},
    {"ddp_step_seconds_total", counter, "rank", "Time of these steps, each from the end of the previous one."},
    {"ddp_last_step_seconds", gauge, "rank", "Time of the last step."},
    {"ddp_last_step_age_seconds", gauge, "rank", "Time since the last step ended."},
    {"ddp_communication_seconds_total", counter, "rank", "Time in which gradients were exchanged, on processors."},
    {"ddp_hidden_communication_seconds_total", counter, "rank", "The part in which gradients were still computed."},
    {"ddp_hidden_communication_ratio", gauge, "rank", "Hidden by total communication, 0 to 1."},
    {"ddp_straggler_rank", gauge, "rank",
     "The rank that others waited for in the last step that looked (find_straggler)."},
    {"ddp_straggler_delay_seconds", gauge, "rank", "How much longer than the straggler another rank waited."},
    {"ddp_training_seconds", summary, "rank, type, name, quantile",
     "Times of parts of steps (libddp.PrometheusWriter)."},
    {"ddp_training_refused", gauge, "rank", "Parts that are malformed, repeated or beyond 100."},
    {"ddp_scrapes_total", counter, "", "Answers of this endpoint, this one included."},
}};

}  // namespace

std::span<const MetricRow> metric_table() { return kTable; }

std::string metrics_markdown() {
  std::string text;
  for (const MetricRow& row : kTable) {
    const std::string labels = row.labels.empty() ? "" : fmt::format("{{{}}}", row.labels);
    text += fmt::format("- `{}{}`: {}\n", row.name, labels, row.help);
  }
  return text;
}

}  // namespace ddp::diagnostics
