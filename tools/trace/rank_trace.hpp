// The trace of one rank's Reducer (Reducer::trace_json), read from a file that may hold anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::tools::trace {

/// A bar of the picture.
struct TraceEvent {
  std::string name;  ///< "computed", "ready", "launched"
  std::uint64_t step;
  std::uint64_t bucket;
  std::uint64_t parameters;  ///< how many the bucket has
  double start_us;           ///< microseconds since the epoch, by the clock of the rank's host
  double duration_us;        ///< >= 0
};

struct RankTrace {
  int rank = 0;
  std::string file;
  std::vector<TraceEvent> events{};
};

/// @param file what messages call it. Throws Error(protocol) for what is no such trace.
RankTrace parse_rank_trace(std::string_view text, std::string file);

}  // namespace ddp::tools::trace
