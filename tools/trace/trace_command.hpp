// `ddp-info trace`: one file of all ranks' traces (Reducer::trace_json), on one clock, for Perfetto.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option_table.hpp"

namespace ddp::tools::trace {

/// A bar of the picture.
struct TraceEvent {
  std::string name;      ///< "step", "forward", "backward"; of a bucket "gradients", "waiting", "exchange"
  std::string category;  ///< "step", "bucket"; others are of a MetricsLogger
  std::uint64_t thread;
  std::uint64_t step;
  std::string arguments;  ///< JSON
  double start_us;        ///< microseconds since the epoch, by the clock of the rank's host
  double duration_us;     ///< >= 0
};

struct RankTrace {
  int rank = 0;
  std::string file;
  std::vector<TraceEvent> events{};
};

/// @param file what messages call it. Throws Error(protocol) for what is no such trace.
RankTrace parse_rank_trace(std::string_view text, std::string file);

/// By rank. Throws Error(conflict) if two files are of one rank.
std::vector<RankTrace> one_of_each_rank(std::vector<RankTrace> traces);

/// What to add to each trace's times, in microseconds. Hosts' clocks differ, but no bucket's exchange ends on any rank
/// before all have launched it. Each bucket that a rank and the first one have in common bounds the difference of their
/// clocks from both sides; where 0 is within the bounds the clock is left alone, else it is moved into their middle.
std::vector<double> clock_corrections(const std::vector<RankTrace>& traces);

/// The events of a timeline of libddp.horovod, as JSON: of all ranks, on one clock. Nothing if @p text is none.
std::vector<std::string> timeline_events(std::string_view text);

/// In the Trace Event Format, for ui.perfetto.dev and chrome://tracing: a process for each rank, a thread for its
/// steps and for each bucket. @param timeline as it is, behind them.
std::string merged_json(const std::vector<RankTrace>& traces, const std::vector<double>& corrections,
                        const std::vector<std::string>& timeline = {});

struct TraceOptions {
  std::string folder;
  bool no_align = false;
  std::string help{};  ///< what --help prints, if it is given
};

cli::OptionTable trace_table(TraceOptions& options);

/// @param arguments those after the word "trace". Throws cli::UsageError.
TraceOptions parse_trace_options(std::span<const std::string> arguments);

/// Writes the merged trace to standard output, and what clocks were moved to standard error. Throws Error.
void run_trace(const TraceOptions& options);

}  // namespace ddp::tools::trace
