// Turns the nodes' reports on their ranks' steps into what the event log says of the job's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/message_fields.hpp"

namespace ddp::diagnostics {

// How far the steps of a rank's Reducers are, as nodes tell whoever leads the job.

/// Since the rank's start (flight::FlightView::Sums).
struct StepProgress {
  int rank = 0;  ///< of the job
  std::int64_t steps = 0;
  std::int64_t step_ns = 0;
  std::int64_t communication_ns = 0;
  std::int64_t hidden_ns = 0;
  int straggler_rank = -1;  ///< -1: nobody looked
  std::int64_t straggler_delay_ns = 0;
  bool operator==(const StepProgress&) const = default;
};
constexpr auto description(const StepProgress*) {
  return base::describe({"StepProgress"}, base::fields<&StepProgress::rank>(base::kCount),
                        base::fields<&StepProgress::steps, &StepProgress::step_ns, &StepProgress::communication_ns,
                                     &StepProgress::hidden_ns, &StepProgress::straggler_delay_ns>(),
                        base::fields<&StepProgress::straggler_rank>(base::kCountOrNone));
}

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
