// The ranks of a node that metrics are about: what they use, and where their steps are.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/metrics/metrics_page.hpp"
#include "diagnostics/metrics/training_metrics.hpp"
#include "flight/flight_view.hpp"

namespace ddp::diagnostics {

// What a rank uses and has done, as /proc and its flight recorder tell whoever asks: the rank itself does nothing for
// it.

struct RankUse {
  int processes = 0;     ///< the rank and what is below it; 0: it is gone
  bool stopped = false;  ///< by a signal
  double cpu_s = 0;
  std::uint64_t resident_bytes = 0;
  std::optional<flight::FlightView> flight{};
  TrainingMetrics training{};
};

/// Looks at one rank again and again. Reads nothing that can block beside a process that hangs in the kernel.
class RankProbe {
 public:
  /// @param pid what the launcher started: the rank, or a script with the rank below it. @param proc "/proc".
  explicit RankProbe(pid_t pid, std::string proc = "/proc") : pid_(pid), proc_(std::move(proc)) {}

  pid_t pid() const { return pid_; }
  /// Processes that it starts are seen within a minute, in its first seconds at once.
  RankUse look();

 private:
  void find_processes();
  void find_flight(RankUse& use);
  pid_t pid_;
  std::string proc_;
  double cpu_s_ = 0;  ///< the most so far: a process that ends between two files is missed in both
  pid_t flight_pid_ = 0;
  std::optional<flight::FlightWindow> window_;                 ///< of flight_pid_
  Deadline search_ = Deadline{Deadline::Clock::time_point{}};  ///< below pid_, before which there is none
  struct Process {
    pid_t pid = 0;
    std::uint64_t start_ticks = 0;  ///< tells it from a later one with its number; 0: not looked at yet
  };
  std::vector<Process> processes_;                           ///< pid_ and what is below it, as last looked for
  Deadline tree_ = Deadline{Deadline::Clock::time_point{}};  ///< until when they are good
  std::chrono::seconds tree_pause_{1};
  std::chrono::seconds pause_{1};  ///< to the next search that follows one in vain
  TrainingReader training_;
};

// The ranks of one node as those see them who watch the job: states, ends, and what each uses and has done.

/// Told by the launcher what it learns; reads the rest when asked. Not thread-safe.
class WatchedRanks {
 public:
  /// An attempt with @p count ranks on this node. Ends of earlier ones stay counted.
  void begin(std::size_t count);

  /// @param rank of the job. @param pid of what the launcher started for it.
  void started(int rank, pid_t pid);
  /// @param code exit code, or the signal that ended it.
  void ended(int rank, int code, bool by_signal);

  /// Metric::ranks, Metric::rank_exits, and the lines of each rank that was started.
  void add_to(MetricsPage& page);
  /// Of running ranks that have taken steps.
  std::vector<StepProgress> progress();

 private:
  struct Rank {
    bool failed = false;
    std::optional<RankProbe> probe;  ///< while it runs
  };

  std::size_t count_ = 0;
  std::map<int, Rank> ranks_;
  std::map<std::pair<std::string, std::string>, int> exits_;  ///< by exit code and signal
};

// The lines of one rank.

/// @param rank in the job.
void add_rank(MetricsPage& page, int rank, const RankUse& use);

}  // namespace ddp::diagnostics
