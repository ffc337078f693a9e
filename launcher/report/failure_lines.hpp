// The rows of a report that are about one failed rank, or about several that failed alike.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "diagnostics/stacks/stack_gatherer.hpp"
#include "outcome/job_outcome.hpp"
#include "report/report_lines.hpp"

namespace ddp::launcher {

/// Shown of a traceback, in bytes; the error file and --report-json have more.
inline constexpr std::size_t kRootTracebackBytes = 16384;

/// How much of a failure the report shows.
struct Extent {
  bool first = false;    ///< of all failures of ranks: the one that is shown in full
  bool several = false;  ///< ranks failed, and the console may have mixed their lines
};

void add_head(ReportLines& lines, int number, std::chrono::system_clock::time_point time, const std::string& host);
void add_rank(ReportLines& lines, const RankName& name);
void add_failure(ReportLines& lines, int number, const RankFailure& failure, Extent extent);

/// Behind the last failure from @p begin on that looks like the first: the same end and last words.
std::vector<RankFailure>::const_iterator end_of_equal_failures(std::vector<RankFailure>::const_iterator begin,
                                                               std::vector<RankFailure>::const_iterator end);
/// One block for all of them, with the pid of the first.
void add_equal_failures(ReportLines& lines, int number, std::span<const RankFailure> failures);

/// Ranks that others name, and that had to be ended.
void add_named_ranks(ReportLines& lines, int number, const GroupVerdict& verdict);

// The part of the report that says where the ranks stood.

/// At most 16 different stacks, each shortened, and notes; empty without any.
std::string stack_lines(const diagnostics::RankStacks& stacks);

}  // namespace ddp::launcher
