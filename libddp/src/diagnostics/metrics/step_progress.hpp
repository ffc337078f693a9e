// How far the steps of a rank's Reducers are, as nodes tell whoever leads the job.
#pragma once

#include <cstdint>

namespace ddp::diagnostics {

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

}  // namespace ddp::diagnostics
