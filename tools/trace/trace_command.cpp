#include "trace/trace_command.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "command/json_files.hpp"
#include "command/output.hpp"

namespace ddp::tools::trace {
namespace {

using nlohmann::json;

// More than any job has.
constexpr std::uint64_t kMaxRank = 10'000'000;
// The year 2200, in microseconds since the epoch; beyond it, traces and sums lose digits.
constexpr double kLatest = 7.3e15;

/// Thrown within this file; becomes the cause of an Error.
struct NoTrace {
  std::string cause;
};

const json& field(const json& object, const char* name) {
  if (!object.is_object()) throw NoTrace{fmt::format("there should be an object with '{}'", name)};
  const auto found = object.find(name);
  if (found == object.end()) throw NoTrace{fmt::format("'{}' is missing", name)};
  return *found;
}

std::uint64_t whole(const json& object, const char* name, std::uint64_t highest) {
  const json& value = field(object, name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > highest) {
    throw NoTrace{fmt::format("'{}' is not a whole number from 0 to {}", name, highest)};
  }
  return value.get<std::uint64_t>();
}

double microseconds(const json& object, const char* name) {
  const json& value = field(object, name);
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= kLatest)) throw NoTrace{fmt::format("'{}' is not a time in microseconds", name)};
  return number;
}

std::string word(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_string()) throw NoTrace{fmt::format("'{}' is not text", name)};
  return value.get<std::string>();
}

void read_event(const json& event, std::size_t position, RankTrace& trace) {
  const std::string phase = word(event, "ph");
  const int rank = static_cast<int>(whole(event, "pid", kMaxRank));
  if (position == 0) trace.rank = rank;
  if (rank != trace.rank) throw NoTrace{fmt::format("it has events of ranks {} and {}", trace.rank, rank)};
  if (phase == "M") return;  // names, which the merged file sets itself
  if (phase != "X") throw NoTrace{"only the traces of Reducers can be merged (events of phase X)"};
  const json& arguments = field(event, "args");
  constexpr auto kAny = std::uint64_t{1} << 53U;  // the integers that JSON readers keep exactly
  trace.events.push_back({.name = word(event, "name"),
                          .category = word(event, "cat"),
                          .thread = whole(event, "tid", kAny),
                          .step = whole(arguments, "step", kAny),
                          .arguments = arguments.dump(),
                          .start_us = microseconds(event, "ts"),
                          .duration_us = microseconds(event, "dur")});
}

RankTrace read(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) throw NoTrace{text.empty() ? "it is empty" : "it is not JSON, or truncated"};
  const json& events = field(document, "traceEvents");
  if (!events.is_array() || events.empty()) throw NoTrace{"'traceEvents' is not a list of events"};
  RankTrace trace;
  for (std::size_t position = 0; position < events.size(); ++position) {
    try {
      read_event(events[position], position, trace);
    } catch (const NoTrace& problem) {
      throw NoTrace{fmt::format("event {}: {}", position, problem.cause)};
    }
  }
  return trace;
}

}  // namespace

RankTrace parse_rank_trace(std::string_view text, std::string file) {
  try {
    RankTrace trace = read(text);
    trace.file = std::move(file);
    return trace;
  } catch (const NoTrace& problem) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the trace '{}'", file),
                 .cause = problem.cause,
                 .hint = "give a folder with what Reducer::trace_json() of each rank gave, and no other *.json"}};
  }
}

namespace {

struct Exchange {
  double launched_us;
  double done_us;
};
using Exchanges = std::map<std::pair<std::uint64_t, std::uint64_t>, Exchange>;  // by step and bucket

Exchanges exchanges_of(const RankTrace& trace) {
  Exchanges exchanges;
  for (const TraceEvent& event : trace.events) {
    if (event.name != "exchange") continue;
    exchanges[{event.step, event.thread}] = {.launched_us = event.start_us,
                                             .done_us = event.start_us + event.duration_us};
  }
  return exchanges;
}

double correction(const Exchanges& first, const Exchanges& other) {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  for (const auto& [key, its] : other) {
    const auto found = first.find(key);
    if (found == first.end()) continue;
    least = std::max(least, found->second.launched_us - its.done_us);
    most = std::min(most, found->second.done_us - its.launched_us);
  }
  // Drifting clocks can contradict each other, so that most < least; the middle is right on average.
  if (least <= 0 && most >= 0) return 0;
  return (least + most) / 2;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Names a process or thread of the trace.
std::string name_event(const char* what, int rank, std::uint64_t thread, const std::string& name) {
  return fmt::format("{{\"name\": \"{}\", \"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": {}}}}}", what,
                     rank, thread, quoted(name));
}

}  // namespace

std::vector<RankTrace> one_of_each_rank(std::vector<RankTrace> traces) {
  std::stable_sort(traces.begin(), traces.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  const auto same =
      std::adjacent_find(traces.begin(), traces.end(), [](const auto& a, const auto& b) { return a.rank == b.rank; });
  if (same == traces.end()) return traces;
  throw Error{{.code = ErrorCode::conflict,
               .attempted = "merging traces",
               .cause = fmt::format("'{}' and '{}' are both of rank {}", same->file, std::next(same)->file, same->rank),
               .ranks = {same->rank},
               .hint = "keep one file per rank in the folder"}};
}

std::vector<double> clock_corrections(const std::vector<RankTrace>& traces) {
  std::vector<double> corrections(traces.size(), 0.0);
  if (traces.empty()) return corrections;
  const Exchanges first = exchanges_of(traces.front());
  for (std::size_t each = 1; each < traces.size(); ++each) {
    corrections[each] = correction(first, exchanges_of(traces[each]));
  }
  return corrections;
}

std::vector<std::string> timeline_events(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_array() || document.empty()) return {};
  const json& first = document.front();
  if (!first.is_object() || first.value("name", json()) != "timeline") return {};
  std::vector<std::string> events;
  for (const json& event : document) events.push_back(event.dump());
  return events;
}

std::string merged_json(const std::vector<RankTrace>& traces, const std::vector<double>& corrections,
                        const std::vector<std::string>& timeline) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char* before = "\n";
  const auto add = [&](const std::string& event) {
    text += before + event;
    before = ",\n";
  };
  for (std::size_t each = 0; each < traces.size(); ++each) {
    const RankTrace& trace = traces[each];
    add(name_event("process_name", trace.rank, 0, fmt::format("rank {}", trace.rank)));
    add(fmt::format(
        "{{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": {0}, \"args\": {{\"sort_index\": {0}}}}}",
        trace.rank));
    if (corrections[each] != 0) {
      add(fmt::format(
          "{{\"name\": \"process_labels\", \"ph\": \"M\", \"pid\": {}, \"args\": {{\"labels\": \"clock moved "
          "by {:.3f} ms\"}}}}",
          trace.rank, corrections[each] / 1e3));
    }
    std::set<std::uint64_t> threads;
    for (const TraceEvent& event : trace.events) {
      if (threads.insert(event.thread).second) {
        add(name_event("thread_name", trace.rank, event.thread,
                       event.category == "bucket" ? fmt::format("bucket {}", event.thread - 1)
                       : event.category == "step" ? "steps"
                                                  : event.name));
      }
      add(
          fmt::format("{{\"name\": {}, \"cat\": {}, \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, "
                      "\"dur\": {:.3f}, \"args\": {}}}",
                      quoted(event.name), quoted(event.category), trace.rank, event.thread,
                      event.start_us + corrections[each], event.duration_us, event.arguments));
    }
  }
  for (const std::string& event : timeline) add(event);
  return text + "\n]}\n";
}

cli::OptionTable trace_table(TraceOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info trace",
       .usage = {"DIR [OPTIONS]"},
       .description =
           {"Merges the traces of a job's ranks in DIR, *.json as Reducer::trace_json() gives them, into one file "
            "for https://ui.perfetto.dev or chrome://tracing, on standard output: steps with their "
            "passes, and of each bucket when its gradients were computed, when it waited for others, and its exchange; "
            "beside them timelines of libddp.horovod.",
            "Clocks of hosts differ: where a bucket would be done on one rank before another has launched it, "
            "the later rank's clock is moved to that of the first, into the middle of what all buckets allow."},
       .examples = {{"ddp-info trace traces > job.json", "then open job.json in https://ui.perfetto.dev"}},
       .exit_statuses = {{"0", "success"},
                         {"1", "failure (a file that is not a trace, two of one rank, the output)"},
                         {"2", "wrong command line"}}}};
  table.add_help();
  table.add_flag("--no-align", "Leave the clocks as they are.", options.no_align);
  return table;
}

TraceOptions parse_trace_options(std::span<const std::string> arguments) {
  TraceOptions options;
  cli::OptionTable table = trace_table(options);
  const auto words = table.read(arguments);
  if (table.given("--help")) {
    options.help = table.help();
  } else {
    options.folder = one_folder(words, "give the one that the ranks wrote their traces to");
  }
  return options;
}

void run_trace(const TraceOptions& options) {
  if (!options.help.empty()) return write_standard_output(options.help);
  const std::string hint = "give the folder that the ranks wrote their traces to";
  std::vector<RankTrace> traces;
  std::vector<std::string> timeline;
  for (const auto& path : list_json_files(options.folder, hint)) {
    const std::string text = read_json_file(path);
    auto events = timeline_events(text);
    if (events.empty()) traces.push_back(parse_rank_trace(text, path.filename().string()));
    std::move(events.begin(), events.end(), std::back_inserter(timeline));
  }
  if (traces.empty() && timeline.empty()) {
    throw Error{{.code = ErrorCode::not_found,
                 .attempted = fmt::format("looking for traces in '{}'", options.folder),
                 .cause = "no file there is called *.json",
                 .hint = hint}};
  }
  traces = one_of_each_rank(std::move(traces));
  std::vector<double> corrections(traces.size(), 0.0);
  if (!options.no_align) corrections = clock_corrections(traces);
  write_standard_output(merged_json(traces, corrections, timeline));
  for (std::size_t each = 0; each < traces.size(); ++each) {
    if (corrections[each] == 0) continue;
    base::write_stderr_line(fmt::format("ddp-info: the clock of rank {} is moved by {:.3f} ms, to that of rank {}",
                                        traces[each].rank, corrections[each] / 1e3, traces.front().rank));
  }
}

}  // namespace ddp::tools::trace
