// Signals that Slurm may have sent to the ranks as well as to ddprun. Which processes of a step slurmstepd signals
// depends on ProctrackType: all of them (proctrack/linuxproc), only tasks, so agents but not ranks (proctrack/cgroup,
// in Slurm's proctrack_p_signal), or the process groups of tasks (proctrack/pgid). Ranks must get each signal once.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"

namespace ddp::launcher {

/// For an attempt process: it is not a task and leads its own session, so if slurmstepd signals it, slurmstepd signals
/// all processes of the step. Orders to signal ranks wait for that where an agent got the signal from slurmstepd.
class StepSignals {
 public:
  struct Settled {
    control::SignalRanks order;
    bool reached_ranks;  ///< Slurm has sent them the signal
  };

  /// @param patience how much later than an agent, perhaps on another node, this process may get a signal
  explicit StepSignals(std::chrono::milliseconds patience = std::chrono::milliseconds(500)) : patience_(patience) {}

  /// This process received it from slurmstepd.
  void arrived(int signal);
  void add(const control::SignalRanks& order);
  /// Orders ready for delivery, in order of arrival.
  std::vector<Settled> take_settled();
  /// When to call take_settled() again.
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
