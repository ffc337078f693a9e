// --event-log of ddprun: what all jobs report, and what only a job with restarts and a report of failures can.
#pragma once

#include <chrono>
#include <string>

#include "diagnostics/metrics/event_log.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

/// Not thread-safe.
class EventLog : public diagnostics::EventLog {
 public:
  using diagnostics::EventLog::EventLog;

  void rank_ended(int attempt, int rank, const std::string& host, const RankEnd& end);
  void node_lost(int attempt, const NodeFailure& node);
  void restart(const JobOutcome& outcome, int attempt, int restart);
  /// Without a restart.
  void generation_started(int generation, const GenerationFacts& facts);
  /// @param known how all ranks have ended; else neither success nor an exit status is claimed where none has failed
  void job_ended(const JobOutcome& outcome, int attempt, int restarts_used, std::chrono::milliseconds total,
                 bool known = true);
};

}  // namespace ddp::launcher
