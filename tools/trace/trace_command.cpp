#include "trace/trace_command.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "command/json_files.hpp"
#include "command/output.hpp"
#include "trace/merge.hpp"

namespace ddp::tools::trace {

void run_trace(const TraceOptions& options) {
  if (options.help) return write_standard_output(kTraceHelp);
  const std::string hint = "give the folder that the ranks wrote their traces to";
  std::vector<RankTrace> traces;
  for (const auto& path : list_json_files(options.folder, hint)) {
    traces.push_back(parse_rank_trace(read_json_file(path), path.filename().string()));
  }
  if (traces.empty()) {
    throw Error{{.code = ErrorCode::not_found,
                 .attempted = fmt::format("looking for traces in '{}'", options.folder),
                 .cause = "no file there is called *.json",
                 .hint = hint}};
  }
  traces = one_of_each_rank(std::move(traces));
  std::vector<double> corrections(traces.size(), 0.0);
  if (options.align) corrections = clock_corrections(traces);
  write_standard_output(merged_json(traces, corrections));
  for (std::size_t each = 0; each < traces.size(); ++each) {
    if (corrections[each] == 0) continue;
    base::write_stderr_line(fmt::format("ddp-info: the clock of rank {} is moved by {:.3f} ms, to that of rank {}",
                                        traces[each].rank, corrections[each] / 1e3, traces.front().rank));
  }
}

}  // namespace ddp::tools::trace
