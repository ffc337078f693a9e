// --event-log: what happens to a job while it runs, one line of JSON an event, for those who watch many jobs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "outcome/job_outcome.hpp"
#include "report/job_progress.hpp"

namespace ddp::launcher {

/// Of every line; the number changes when a field is removed or changes its meaning, not when one is added.
inline constexpr std::string_view kEventSchema = "ddprun-events/1";

/// docs/ddprun.md describes the events. A line is written at once, so that jobs may share a file on one host; an event
/// that cannot be written (a full disk, a pipe that nobody reads) ends the log, and the job goes on. Not thread-safe.
class EventLog {
 public:
  struct Job {
    std::string run_id;
    std::string slurm_job_id;  ///< empty: none
    std::string program;
    int max_restarts = 0;
  };

  /// Appends to @p path, which is made if there is none, and writes "job_started". Throws Error(system).
  /// @param note tells the user, once, why the log ends
  EventLog(const std::string& path, Job job, std::function<void(const std::string&)> note);

  void node_joined(int joined, int wanted);
  /// All ranks of an attempt are running.
  void attempt_started(int attempt, int world_size, int num_nodes);
  void progress(int attempt, const ProgressFacts& facts);
  void restart(const JobOutcome& outcome, int attempt, int restart);
  void job_ended(const JobOutcome& outcome, int attempt, int restarts_used, std::chrono::milliseconds total);

 private:
  struct Fields;
  void write(std::string_view event, Fields&& fields);

  std::string path_;
  Job job_;
  std::function<void(const std::string&)> note_;
  base::UniqueFd file_;  ///< none: the log has ended
};

}  // namespace ddp::launcher
