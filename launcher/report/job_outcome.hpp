// How a job ended, as facts for the report and the exit status.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ddp::launcher {

/// How a rank's process ended.
struct RankEnd {
  int code;  ///< exit code, or the signal's number
  bool by_signal;
  bool core_dumped;
  std::chrono::system_clock::time_point time;  ///< when ddprun saw it

  bool success() const { return !by_signal && code == 0; }
  /// As a shell would say it: the exit code, or 128 + signal.
  int exit_status() const { return by_signal ? 128 + code : code; }
};

struct RankName {
  int rank;
  int local_rank;
  pid_t pid;
};

/// A rank called PMIx_Abort.
struct AbortCall {
  int status;
  std::string message;
};

/// A rank that failed by itself. Either it ended, or it called PMIx_Abort, or both.
struct RankFailure {
  RankName name;
  std::optional<RankEnd> end;
  std::optional<AbortCall> abort;
  std::chrono::system_clock::time_point time;
};

/// A rank that had been stopped before the first failure and had not gone on: the others probably failed because of it.
struct StoppedRank {
  RankName name;
  int signal;
  std::chrono::milliseconds before_failure;
  std::chrono::system_clock::time_point time;
};

struct JobOutcome {
  std::vector<StoppedRank> stopped;    ///< longest stopped first
  std::vector<RankFailure> failures;   ///< in the order in which they were seen
  int forwarded_signal = 0;            ///< the signal to ddprun that ended the job; 0: none
  int ended_on_request = 0;            ///< ranks that ended after ddprun had asked them to
  int killed = 0;                      ///< ranks that had to be killed
  std::vector<RankName> unkillable{};  ///< ranks that did not end even so

  bool success() const { return stopped.empty() && failures.empty() && forwarded_signal == 0 && unkillable.empty(); }
  /// That of the first failure; 128 + N when signal N ended the job; 0 for success.
  int exit_status() const {
    if (!failures.empty()) {
      const RankFailure& first = failures.front();
      if (!first.abort) return first.end->exit_status();
      const int status = first.abort->status & 0xff;  // what a process can return
      return status != 0 ? status : 1;
    }
    if (forwarded_signal != 0) return 128 + forwarded_signal;
    return unkillable.empty() ? 0 : 1;
  }
};

}  // namespace ddp::launcher
