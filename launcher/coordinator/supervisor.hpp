// Decides what happens to a job when ranks end, stop or abort, nodes are lost, and ddprun receives signals: time and
// events come in, signals to send come out. It only decides, so that it can be tested without processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "options/launch_options.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

/// What all agents must do with all of their ranks: send a signal, or read stacks. Or with some.
struct SignalOrder {
  enum class Target {
    groups,   ///< the process groups of all workers
    workers,  ///< the worker processes only
    stacks,   ///< read the stacks; then comes examined()
    some,     ///< the process groups of `ranks`
  };
  Target target;
  int signal;
  std::vector<int> ranks{};
  bool operator==(const SignalOrder&) const = default;
};
using SignalOrders = std::vector<SignalOrder>;

struct SupervisionLimits {
  std::chrono::milliseconds failure_grace;
  std::chrono::milliseconds shutdown_timeout;
  std::chrono::milliseconds kill_patience{10'000};  ///< from SIGKILL to giving up
  /// The same once a signal or --timeout ends the job.
  std::chrono::milliseconds final_kill_patience{2'500};
  /// For the others to end, once one rank has ended for another generation.
  std::chrono::milliseconds resize_grace{120'000};
  /// For stacks to be read, before ranks are ended because nothing moves; 0: they are not read.
  std::chrono::milliseconds examination{0};
};

/// What signals to ddprun mean. One in both lists ends the job; one in neither does nothing.
struct SignalMeaning {
  std::vector<int> ending;     ///< forwarded to the workers' process groups; the job ends
  std::vector<int> forwarded;  ///< forwarded to the workers; the job continues
};

/// An instant on both clocks: limits need the steady one, reports the wall clock.
struct Moment {
  Deadline::Clock::time_point steady;
  std::chrono::system_clock::time_point wall;
  static Moment now() { return {.steady = Deadline::Clock::now(), .wall = std::chrono::system_clock::now()}; }
};

/// Limit of all error files and last lines together, in bytes. Failures beyond it keep only the file's path.
inline constexpr std::size_t kMaxTraceBytes = std::size_t{64} << 20U;

/// One attempt of a job on all of its nodes, from "all ranks started" to "all ended". Ranks are named by global rank.
///
///   running --first failure--> grace --failure_grace--> terminating --shutdown_timeout--> killing --> abandoned
///   running, grace --an ending signal to ddprun, PMIx_Abort, a lost node or --timeout--> terminating
///   running --ranks that hang are ended--> grace
///   running --resize--> terminating
///   running --resize with a grace, or a rank that has ended for another generation--> resizing
///   resizing --the grace, a rank's failure, PMIx_Abort, a lost node, an ending signal or --timeout--> terminating
///   terminating --a second SIGINT--> killing
///   running --timeout--> examining --all stacks read, or the limit--> terminating
///   terminating --a second SIGQUIT--> examining --likewise--> killing
///
/// A rank that ends with success never ends the job, however early; it is named where others fail after it. A rank that
/// SIGKILL or a crash ended comes before ranks that failed by themselves up to 250 ms earlier: those perhaps heard of
/// its death before its agent did.
class Supervisor {
 public:
  /// @param ranks by global rank, from 0 without gaps.
  Supervisor(std::vector<RankName> ranks, SupervisionLimits limits, SignalMeaning signals);

  /// Where a rank runs, before anything is known of it, if the constructor's caller could not say.
  void rank_placed(RankName name) { at(name.rank).name = std::move(name); }
  /// Sets the rank's pid, also in what has been recorded already.
  void rank_started(int rank, pid_t pid);
  /// @param traces what the rank left behind; kept for failures only.
  SignalOrders rank_ended(int rank, const RankEnd& end, RankTraces traces, Moment now);
  SignalOrders rank_aborted(int rank, AbortCall call, Moment now);
  void rank_stopped(int rank, int signal, Moment now);
  void rank_continued(int rank);
  /// The node's agent was lost or could not start its ranks. These (num_ranks from @p first_rank) count as ended, and
  /// are no failures of their own. Call it once for a node, also when its ranks have ended: the others need its agent.
  SignalOrders node_failed(NodeFailure failure, int first_rank, Moment now);
  /// Also after the last end: a failed job is not restarted then; success stays. @param by_slurm one cause may give
  /// several of these
  SignalOrders signal_received(int signal, Moment now, bool by_slurm = false);
  /// --timeout expired; as signal_received().
  SignalOrders job_timed_out(Moment now);
  /// All ranks are to end for another generation, on other nodes: how they end is no failure; with How::finish, exits
  /// with 0 alone are the job's success. Does nothing once a failure or anything else ends them, or all have ended. A
  /// rank that ends for another generation (RankEnd::restarts) has the effect of How::finish.
  SignalOrders resize(const ResizeManner& manner, Moment now);
  /// These have hung for @p time and are killed, which makes them failures. Does nothing once anything ends the ranks.
  SignalOrders end_hung(const std::vector<int>& ranks, std::chrono::milliseconds time, Moment now);
  /// Somebody else (Slurm) ends the ranks, because one has failed: what ends from now on ends on request.
  void ranks_signalled(int signal, Moment now) {
    if (may_terminate()) terminate(signal, now);
  }
  /// The stacks have been read, as far as they can be.
  SignalOrders examined(Moment now);
  /// Call it when next_deadline() has passed.
  SignalOrders time_passed(Moment now);

  /// When to call time_passed() next; nothing while no limit runs.
  std::optional<Deadline> next_deadline() const { return phase_end_; }

  /// Nothing ends the ranks yet.
  bool running() const { return phase_ == Phase::running; }
  /// Stacks are being read.
  bool examining() const { return phase_ == Phase::examining; }
  /// Ranks end for another generation, within a grace.
  bool resizing() const { return phase_ == Phase::resizing; }
  /// Whether that end is what resize() asked for.
  bool fits_resize(const RankEnd& end) const { return end.success() || (end.by_signal && end.code == resize_signal_); }
  /// Ranks that have not ended, ascending.
  std::vector<RankName> left() const;
  /// SIGKILL has been ordered, and the ranks have until next_deadline() to end.
  bool killing() const { return phase_ == Phase::killing; }
  /// All ranks have ended or been given up.
  bool done() const { return running_ == 0 || phase_ == Phase::abandoned; }
  const JobOutcome& outcome() const { return outcome_; }

 private:
  enum class Phase { running, grace, resizing, examining, terminating, killing, abandoned };
  struct Stop {
    int signal;
    Moment since;
  };
  struct Rank {
    RankName name;
    bool ended = false;
    std::optional<Stop> stop{};
    std::optional<Moment> succeeded{};     ///< when it ended with exit code 0 while the job went well
    std::optional<std::size_t> failure{};  ///< in the outcome
    std::optional<std::chrono::milliseconds> hung{};
  };

  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  bool going_on() const { return phase_ == Phase::running || phase_ == Phase::grace; }
  /// No rank has been told to end but for another generation, with a grace.
  bool may_terminate() const { return going_on() || phase_ == Phase::resizing; }
  /// @return false when it was known
  bool mark_ended(Rank& rank);
  RankFailure* failure_of(const Rank& rank);
  void note_failure(Rank& rank, RankFailure failure, Moment now);
  /// A crash that is heard of just after other failures, which were perhaps reactions to it.
  bool is_late_cause(const RankEnd& end, Moment now) const;
  /// Where such a crash belongs among the failures: before the first that ended by itself.
  std::size_t place_before_reactions() const;
  void note_stopped(Moment now);
  /// Those that ended with success @p least ago or earlier.
  void note_early(std::chrono::milliseconds least, Moment now);
  RankTraces within_budget(RankTraces traces);
  void enter(Phase phase, std::chrono::milliseconds limit, Moment now);
  SignalOrders terminate(int signal, Moment now);
  SignalOrders kill(Moment now);
  /// Reads stacks before @p next.
  SignalOrders examine(Phase next, Moment now);

  SupervisionLimits limits_;
  SignalMeaning signals_;
  std::vector<Rank> ranks_;
  std::size_t running_;
  Phase phase_ = Phase::running;
  std::optional<Deadline> phase_end_;
  Phase after_examination_ = Phase::terminating;  ///< or killing
  int interrupts_ = 0;                            ///< SIGINTs received
  int resize_signal_ = 0;                         ///< sent by resize()
  int ended_with_ = 0;                            ///< the last signal sent to end the groups, and its time
  Deadline::Clock::time_point ended_at_{};
  Deadline::Clock::time_point first_failure_{};
  std::size_t trace_bytes_ = 0;
  JobOutcome outcome_;
};

}  // namespace ddp::launcher
