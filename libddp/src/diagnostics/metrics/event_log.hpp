// --event-log of ddprun, --ddp-event-log of srun: what happens to a job while it runs, one line of JSON an event, for
// those who watch many jobs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "diagnostics/metrics/metrics_page.hpp"

namespace ddp::diagnostics {

/// Of every line; the number changes when a field is removed or changes its meaning, not when one is added.
inline constexpr std::string_view kEventSchema = "ddprun-events/1";

/// RFC 3339, in UTC.
std::string time_text(std::chrono::system_clock::time_point time);

/// docs/reference/ddprun.md describes the events. A line is written at once, so that jobs may share a file on one host.
/// An event that cannot be written (a full disk, a pipe without a reader) ends the log; the job continues. Not
/// thread-safe.
class EventLog {
 public:
  struct Job {
    std::string schema{kEventSchema};
    std::string run_id;
    std::string slurm_job_id;  ///< empty: none
    std::string program;
    int max_restarts = 0;
  };

  /// Appends to @p path, which is made if there is none, and writes "job_started". Throws Error(system).
  /// @param option that names the path. @param note tells the user, once, why the log ends
  EventLog(std::string_view option, const std::string& path, Job job, std::function<void(const std::string&)> note);

  void node_joined(int joined, int wanted);
  /// All ranks of an attempt are running.
  void attempt_started(int attempt, int world_size, int num_nodes);
  void progress(int attempt, const ProgressFacts& facts);
  /// Any other. @param fields a JSON object of those that are this event's own.
  void write(std::string_view event, std::string_view fields);

 private:
  std::string what_;  ///< "--event-log=FILE"
  Job job_;
  std::function<void(const std::string&)> note_;
  base::UniqueFd file_;  ///< none: the log has ended
};

}  // namespace ddp::diagnostics
