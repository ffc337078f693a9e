#include "trace/rank_trace.hpp"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

namespace ddp::tools::trace {
namespace {

using nlohmann::json;

// More than any job has.
constexpr std::uint64_t kMaxRank = 10'000'000;
// The year 2200, in microseconds since the epoch; beyond, pictures and sums lose digits.
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
    throw NoTrace{fmt::format("'{}' is no whole number from 0 to {}", name, highest)};
  }
  return value.get<std::uint64_t>();
}

double microseconds(const json& object, const char* name) {
  const json& value = field(object, name);
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= kLatest)) throw NoTrace{fmt::format("'{}' is no time in microseconds", name)};
  return number;
}

std::string word(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_string()) throw NoTrace{fmt::format("'{}' is no text", name)};
  return value.get<std::string>();
}

void read_event(const json& event, std::size_t position, RankTrace& trace) {
  const std::string phase = word(event, "ph");
  const int rank = static_cast<int>(whole(event, "pid", kMaxRank));
  if (position == 0) trace.rank = rank;
  if (rank != trace.rank) throw NoTrace{fmt::format("it has events of ranks {} and {}", trace.rank, rank)};
  if (phase == "M") return;  // names, which the merged file gives itself
  if (phase != "X") throw NoTrace{"only the traces of Reducers can be merged (events of phase X)"};
  const json& arguments = field(event, "args");
  constexpr auto kAny = std::uint64_t{1} << 53U;  // what JSON's readers keep exactly
  trace.events.push_back({.name = word(event, "name"),
                          .step = whole(arguments, "step", kAny),
                          .bucket = whole(arguments, "bucket", kAny),
                          .parameters = whole(arguments, "parameters", kAny),
                          .start_us = microseconds(event, "ts"),
                          .duration_us = microseconds(event, "dur")});
}

RankTrace read(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) throw NoTrace{text.empty() ? "it is empty" : "it is no JSON, or truncated"};
  const json& events = field(document, "traceEvents");
  if (!events.is_array() || events.empty()) throw NoTrace{"'traceEvents' is no list of events"};
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

}  // namespace ddp::tools::trace
