// The ranks of one node as those see them who watch the job: states, ends, and what each uses and has done.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnostics/metrics/metrics_page.hpp"
#include "diagnostics/metrics/rank_probe.hpp"
#include "diagnostics/metrics/step_progress.hpp"

namespace ddp::diagnostics {

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

}  // namespace ddp::diagnostics
