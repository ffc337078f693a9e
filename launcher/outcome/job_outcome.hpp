// How an attempt of a job ended, as facts for the report and the exit status.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "diagnostics/hang/hang_report.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"

namespace ddp::launcher {

// How the nodes of a generation differ from those before, and why it began: facts for the line about it, the event log
// and the report.

struct RosterChange {
  int before = 0;                     ///< nodes of the generation before; 0: there was none
  int survivors = 0;                  ///< how many of these go on
  std::vector<std::string> joined{};  ///< hosts of the others, by node rank
  std::vector<std::string> left{};    ///< hosts of those that wanted to leave
  std::vector<std::string> parked{};  ///< hosts of those that now wait as spares
  std::string asked_by{};             ///< who wanted another number of nodes; empty: nobody has
  bool spends_restart = false;
};

/// Why a generation began.
enum class GenerationReason {
  start,
  restart,
  node_lost,
  node_left,
  node_joined,
  requested,  ///< by ranks
  resized,    ///< by RosterChange::asked_by
};

/// A generation of the job, in the order of their numbers from 0.
struct GenerationFacts {
  GenerationReason reason = GenerationReason::start;
  RosterChange change{};
  std::vector<std::string> lost{};  ///< hosts
  std::chrono::system_clock::time_point time{};
};

using diagnostics::RankStacks;
using diagnostics::StackGroup;
using diagnostics::StackNote;

/// How a rank's process ended.
struct RankEnd {
  int code;  ///< exit code, or the signal's number
  bool by_signal;
  bool core_dumped;
  std::chrono::system_clock::time_point time{};  ///< when its agent saw it
  bool restarts = false;                         ///< with code 0: it has ended for another generation

  bool success() const { return !by_signal && code == 0; }
  /// As in a shell: the exit code, or 128 + signal.
  int exit_status() const { return by_signal ? 128 + code : code; }
  bool operator==(const RankEnd&) const = default;
};

/// What a failed rank left besides its exit code. All texts are bounded (see error_file.hpp).
struct RankTraces {
  std::string error_file{};     ///< path of the file that @record wrote; empty: there is none
  std::string error_content{};  ///< the file, as it is
  std::string stderr_tail{};    ///< last lines of standard error; empty when there are none or they were not captured
  std::string oom{};            ///< one sentence when the kernel's OOM killer ended it; else empty
  std::string pmix_server{};    ///< one sentence when ddprun's PMIx server on its node did not answer then; else empty
  std::string stdout_log{};     ///< files of -r and -t, on the rank's host; empty: none
  std::string stderr_log{};
  bool stderr_shown = false;  ///< the console has its standard error
  bool python = false;        ///< the program is Python's, as far as ddprun knows
  std::string interpreter{};  ///< which, and where it came from; empty: not known
  bool operator==(const RankTraces&) const = default;
};

struct RankName {
  int rank;
  int local_rank;
  pid_t pid;  ///< 0: never started
  std::string host{};
};

/// A rank called PMIx_Abort.
struct AbortCall {
  int status;
  std::string message;
  bool operator==(const AbortCall&) const = default;
};

/// A rank that failed by itself. Either it ended, or it called PMIx_Abort, or both.
struct RankFailure {
  RankName name;
  std::optional<RankEnd> end{};
  std::optional<AbortCall> abort{};
  std::chrono::system_clock::time_point time{};
  RankTraces traces{};
  std::optional<std::chrono::milliseconds> hung{};  ///< for so long; then ddprun ended it (--end-hung)
};

/// A rank that was stopped before the first failure and not resumed: probably why the others failed.
struct StoppedRank {
  RankName name;
  int signal;
  std::chrono::milliseconds before_failure;
  std::chrono::system_clock::time_point time;
};

/// A rank that ended with exit code 0 while others ran, which then failed or had to be ended: perhaps because they
/// waited for it.
struct EarlyEnd {
  RankName name;
  std::chrono::milliseconds before_failure;  ///< or before the signal or --timeout that ended the job
  std::chrono::system_clock::time_point time;
};

/// A node whose agent was lost or could not start its ranks: a failure of the node, not of a rank.
struct NodeFailure {
  std::string host;
  int node_rank;
  int num_ranks;        ///< its ranks are counted and not listed
  std::string message;  ///< "the connection to ddprun's agent (pid 7) was lost", with what to do where that is known
  int exit_status;      ///< what ddprun returns when this is the root cause
  std::chrono::system_clock::time_point time{};
  /// It was silent already when the first rank failed, which then followed from it.
  bool silent_before = false;
};

using diagnostics::HangReport;

/// Whom other ranks of a process group name in their errors, where it is not the rank that ended first.
struct GroupVerdict {
  std::vector<int> ranks;      ///< ascending
  std::vector<int> reporters;  ///< whose errors say so
  bool has_failed;             ///< one of `ranks` has ended with a failure, which is the first of JobOutcome::failures
};

/// Why a job failed. stopped_rank: the failures of the others followed from it.
enum class RootCause { none, node, stopped_rank, rank, signal, timeout, unkillable };

inline constexpr std::size_t kMostStoreRefusals = 16;

struct JobOutcome {
  std::vector<NodeFailure> nodes{};     ///< in the order in which they were seen
  std::vector<StoppedRank> stopped{};   ///< longest stopped first
  bool rank_failed_first = false;       ///< before any of `nodes`; clocks of different nodes cannot tell
  std::vector<RankFailure> failures{};  ///< in the order in which they were seen
  std::vector<EarlyEnd> early{};        ///< the first to end first; a hint, no failures
  int forwarded_signal = 0;  ///< the signal to ddprun that ended the job, perhaps one that was failing; 0: none
  bool timed_out = false;    ///< --timeout ended the job, likewise
  bool resized = false;      ///< all ranks were ended so that others can go on, on other nodes; no failure by itself
  int ended_on_request = 0;  ///< ranks that ended after ddprun had asked them to
  int killed = 0;            ///< ranks that had to be killed
  int lost = 0;              ///< ranks whose node was lost while a signal or --timeout was ending the job
  std::vector<RankName> unkillable{};  ///< ranks that did not end even so
  /// Hosts that did not answer when the job ended, except those in `nodes`: their processes may still be there.
  std::vector<std::string> silent{};
  /// Lines about connections that the job's store refused or closed, which perhaps came from its own ranks: the first
  /// kMostStoreRefusals.
  std::vector<std::string> store_refusals{};
  RankStacks stacks{};  ///< where ranks stood before they were ended, if that was asked for
  std::optional<HangReport> hang{};
  std::optional<GroupVerdict> verdict{};

  bool success() const {
    return nodes.empty() && stopped.empty() && failures.empty() && forwarded_signal == 0 && !timed_out &&
           unkillable.empty() && !resized;
  }
  /// Signal @p signal ends the job. Ranks that had already ended by that very signal had got it too, as when Slurm
  /// signals a whole step: they are no failures then.
  void end_by(int signal);
  /// Whether a restart may help: not when the user ended the job.
  bool failed_by_itself() const { return !success() && forwarded_signal == 0 && !timed_out; }
  /// The first node failure, unless a rank had failed before it; then ranks; then signal, timeout, unkillable ranks.
  RootCause root_cause() const;
  /// That of the root cause; 128 + N when signal N ended the job; 124 when --timeout did, as timeout(1); 0 for success.
  /// For a stopped rank, that of the first failure. Never 0 for a failure.
  int exit_status() const;
};

}  // namespace ddp::launcher
