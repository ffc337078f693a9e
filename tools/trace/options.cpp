#include "trace/options.hpp"

#include <vector>

#include "command/folder_options.hpp"

namespace ddp::tools::trace {

const char* const kTraceHelp =
    "Usage: ddp-info trace DIR [OPTIONS]\n"
    "\n"
    "Merges the traces of a job's ranks in DIR, *.json as Reducer::trace_json() gives them, into one file for\n"
    "https://ui.perfetto.dev or chrome://tracing, on standard output: when each bucket of gradients was computed, "
    "ready,\n"
    "launched and done.\n"
    "\n"
    "Clocks of hosts differ: where a bucket would be done on one rank before another has launched it, the later "
    "rank's\n"
    "clock is moved to that of the first, into the middle of what all buckets allow.\n"
    "\n"
    "Options:\n"
    "  -h, --help                Print this help and exit.\n"
    "      --no-align            Leave the clocks as they are.\n"
    "\n"
    "Examples:\n"
    "  ddp-info trace traces > job.json    then open job.json in https://ui.perfetto.dev\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 success; 1 failure (a file that is no trace, two of one rank, the output); 2 wrong command line.\n";

TraceOptions parse_trace_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--help", "--no-align"};
  const FolderOptions parsed =
      parse_folder_options(arguments, "trace", kNames, "give the one that the ranks wrote their traces to");
  return {
      .folder = parsed.folder, .align = !parsed.given.contains("--no-align"), .help = parsed.given.contains("--help")};
}

}  // namespace ddp::tools::trace
