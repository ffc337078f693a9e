// The lines of one rank.
#pragma once

#include "diagnostics/metrics/metrics_page.hpp"
#include "diagnostics/metrics/rank_probe.hpp"

namespace ddp::diagnostics {

/// @param rank in the job.
void add_rank(MetricsPage& page, int rank, const RankUse& use);

}  // namespace ddp::diagnostics
