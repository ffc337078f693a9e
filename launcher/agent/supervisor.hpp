// Decides what happens to a job when ranks end, stop or abort and when ddprun gets signals. It decides and does nothing
// itself: time and events come in, signals to send come out, so every course of events can be tested without processes.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "report/job_outcome.hpp"

namespace ddp::launcher {

/// A signal that the agent must send.
struct SignalOrder {
  enum class Target {
    groups,   ///< the process groups of all workers
    workers,  ///< the worker processes only
  };
  Target target;
  int signal;
  bool operator==(const SignalOrder&) const = default;
};
using SignalOrders = std::vector<SignalOrder>;

struct SupervisionLimits {
  std::chrono::milliseconds failure_grace;
  std::chrono::milliseconds shutdown_timeout;
  std::chrono::milliseconds kill_patience{10'000};  ///< SIGKILL to giving up on a process that the kernel cannot end
};

/// An instant on both clocks: limits need the steady one, reports the wall clock.
struct Moment {
  Deadline::Clock::time_point steady;
  std::chrono::system_clock::time_point wall;
  static Moment now() { return {.steady = Deadline::Clock::now(), .wall = std::chrono::system_clock::now()}; }
};

/// One attempt of a job, from "all ranks started" to "all ended". Ranks are named by local rank.
///
///   running --first failure--> grace --failure_grace--> terminating --shutdown_timeout--> killing --> abandoned
///   running, grace --SIGTERM, SIGINT, SIGHUP or SIGQUIT to ddprun, or PMIx_Abort--> terminating
///   terminating --a second SIGINT--> killing
class Supervisor {
 public:
  Supervisor(std::vector<RankName> ranks, SupervisionLimits limits);

  SignalOrders rank_ended(int local_rank, const RankEnd& end, Moment now);
  SignalOrders rank_aborted(int local_rank, AbortCall call, Moment now);
  void rank_stopped(int local_rank, int signal, Moment now);
  void rank_continued(int local_rank);
  /// A signal to ddprun: SIGUSR1 and SIGUSR2 are passed on, the others end the job.
  SignalOrders signal_received(int signal, Moment now);
  /// To be called when next_deadline() has passed.
  SignalOrders time_passed(Moment now);

  /// When time_passed() must be called next; nothing while there is no limit running.
  std::optional<Deadline> next_deadline() const;

  /// All ranks have ended, or the rest has been given up.
  bool done() const { return running_ == 0 || phase_ == Phase::abandoned; }
  JobOutcome outcome() const;

 private:
  enum class Phase { running, grace, terminating, killing, abandoned };
  struct Stop {
    int signal;
    Moment since;
  };
  struct Rank {
    RankName name;
    bool ended = false;
    std::optional<Stop> stop;
  };

  Rank& rank(int local_rank) { return ranks_.at(static_cast<std::size_t>(local_rank)); }
  void note_failure(RankFailure failure, Moment now);
  void enter(Phase phase, std::chrono::milliseconds limit, Moment now);
  SignalOrders terminate(int signal, Moment now);
  SignalOrders kill(Moment now);

  SupervisionLimits limits_;
  std::vector<Rank> ranks_;
  std::size_t running_;
  Phase phase_ = Phase::running;
  std::optional<Deadline> phase_end_;
  int interrupts_ = 0;  ///< SIGINTs received
  JobOutcome outcome_;
};

}  // namespace ddp::launcher
