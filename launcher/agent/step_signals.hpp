// Signals that Slurm may have sent to the ranks as well as to ddprun. Which processes of a step slurmstepd signals is a
// matter of ProctrackType: all of them (proctrack/linuxproc), only tasks, so agents but not ranks (proctrack/cgroup, in
// Slurm's proctrack_p_signal), or the process groups of tasks (proctrack/pgid). Ranks must get each signal once.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"

namespace ddp::launcher {

/// For an attempt process: it is no task and has a session of its own, so that a slurmstepd which signals it signals
/// all processes of the step. Orders to signal ranks wait for that where an agent has got the signal from slurmstepd.
class StepSignals {
 public:
  struct Settled {
    control::SignalRanks order;
    bool reached_ranks;  ///< they have got the signal by themselves
  };

  /// @param patience how much later than an agent, perhaps on another node, this process may get a signal
  explicit StepSignals(std::chrono::milliseconds patience = std::chrono::milliseconds(500)) : patience_(patience) {}

  /// This process has got it from slurmstepd.
  void arrived(int signal);
  void add(const control::SignalRanks& order);
  /// The orders about which there is nothing more to wait for, in the order in which they came.
  std::vector<Settled> take_settled();
  /// When to ask again.
  std::optional<Deadline> next_deadline() const;

 private:
  struct Waiting {
    control::SignalRanks order;
    Deadline limit;
  };

  bool take_arrival(int signal);

  std::chrono::milliseconds patience_;
  std::map<int, Deadline> arrivals_;  ///< until when they count, by signal
  std::vector<Waiting> waiting_;
};

}  // namespace ddp::launcher
