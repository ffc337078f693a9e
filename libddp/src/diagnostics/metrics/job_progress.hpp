// From what nodes tell of their ranks' steps, what the event log says of the job's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "diagnostics/metrics/step_progress.hpp"

namespace ddp::diagnostics {

/// Of all ranks that tell, since the line before.
struct ProgressFacts {
  int ranks = 0;
  std::int64_t least_steps = 0;  ///< since the attempt began, of the rank that has taken fewest
  std::int64_t most_steps = 0;
  std::optional<double> step_s;       ///< mean of all ranks' steps; nothing: no step ended
  std::optional<double> slowest_s;    ///< the mean of the rank whose steps took longest
  std::optional<double> hidden;       ///< share of communication, 0 to 1; nothing: none on processors
  std::optional<int> straggler_rank;  ///< nothing: nobody looked
  double straggler_delay_s = 0;
};

/// Not thread-safe.
class JobProgress {
 public:
  /// @return the facts once all @p nodes of the attempt have told, or one tells again, so that there is no more than a
  /// line for each interval.
  std::optional<ProgressFacts> add(int node, std::size_t nodes, int attempt, const std::vector<StepProgress>& ranks);

 private:
  ProgressFacts conclude();

  int attempt_ = -1;
  std::set<int> told_;                     ///< nodes, since the last line
  std::map<int, StepProgress> now_;        ///< by rank
  std::map<int, StepProgress> last_line_;  ///< by rank: as it was then
};

}  // namespace ddp::diagnostics
