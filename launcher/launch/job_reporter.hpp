// What a user sees of a job besides the ranks' output: status line, notes, final report.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/env_table.hpp"
#include "coordinator/coordinator.hpp"
#include "diagnostics/metrics/metrics_page.hpp"
#include "options/launch_options.hpp"
#include "report/event_log.hpp"

namespace ddp::launcher {

// One line on the terminal while a job starts, and one when it is over. Silent unless standard error is a terminal.

class StatusLine {
 public:
  explicit StatusLine(bool terminal) : terminal_(terminal) {}
  StatusLine& operator=(StatusLine&&) = delete;
  ~StatusLine() { clear(); }

  bool terminal() const { return terminal_; }
  /// Replaces the line. Never throws and never blocks for long: what the terminal does not take is left out.
  void show(const std::string& text) noexcept;
  /// Before anything else is written.
  void clear() noexcept;

 private:
  bool terminal_;
  bool shown_ = false;
};

/// "64 ranks on 4 nodes succeeded after 12.3 s (running after 0.21 s)"
std::string summary_line(int world_size, int num_nodes, std::chrono::milliseconds until_started,
                         std::chrono::milliseconds total);

/// For the process with the coordinator.
class JobReporter {
 public:
  explicit JobReporter(const LaunchOptions& options);

  /// Functions that refer to this object. Begins --event-log: throws Error(system) where that cannot be written.
  CoordinatorEvents events(const base::Environment& environment);

  /// How often the event log is to hear of steps; 0: never.
  std::chrono::milliseconds progress_interval() const {
    return options_.event_log.empty() ? std::chrono::milliseconds{0} : options_.event_log_interval;
  }

  /// Writes the report of the last attempt: text to standard error, --report-json, and the root cause's error file for
  /// an outer launcher. What cannot be written is reported on standard error. Waits for a slow reader of standard error
  /// (a pager) within the drain time, but not once an ending signal is pending, which must be blocked.
  void report(const Coordinator& coordinator, const base::Environment& environment);

 private:
  void note(const std::string& text);

  void add_generation(GenerationReason reason, const JobOutcome& outcome, const RosterChange& change);
  void begin_event_log(const base::Environment& environment);

  const LaunchOptions& options_;
  std::optional<EventLog> event_log_;
  diagnostics::JobProgress progress_;
  int attempt_ = 0;
  std::vector<GenerationFacts> generations_{};  ///< empty until there is a second one
  StatusLine status_;
  std::string description_;  ///< --dry-run: of all nodes
  std::chrono::system_clock::time_point start_;
  std::chrono::steady_clock::time_point steady_start_;
  std::chrono::milliseconds until_started_{0};
};

}  // namespace ddp::launcher
