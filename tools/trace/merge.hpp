// Traces of several ranks as one, on one clock.
#pragma once

#include <string>
#include <vector>

#include "trace/rank_trace.hpp"

namespace ddp::tools::trace {

/// By rank. Throws Error(conflict) if two files are of one rank.
std::vector<RankTrace> one_of_each_rank(std::vector<RankTrace> traces);

/// What to add to each trace's times, in microseconds. Hosts' clocks differ, but no bucket's exchange ends on any rank
/// before all have launched it. Each bucket that a rank and the first one have in common bounds the difference of their
/// clocks from both sides; where 0 is within the bounds the clock is left alone, else it is moved into their middle.
std::vector<double> clock_corrections(const std::vector<RankTrace>& traces);

/// In the Trace Event Format, for ui.perfetto.dev and chrome://tracing: a process for each rank, a thread for each
/// bucket.
std::string merged_json(const std::vector<RankTrace>& traces, const std::vector<double>& corrections);

}  // namespace ddp::tools::trace
