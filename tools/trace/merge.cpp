#include "trace/merge.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

namespace ddp::tools::trace {
namespace {

struct Exchange {
  double launched_us;
  double done_us;
};
using Exchanges = std::map<std::pair<std::uint64_t, std::uint64_t>, Exchange>;  // by step and bucket

Exchanges exchanges_of(const RankTrace& trace) {
  Exchanges exchanges;
  for (const TraceEvent& event : trace.events) {
    if (event.name != "launched") continue;
    exchanges[{event.step, event.bucket}] = {.launched_us = event.start_us,
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
  // Clocks that drift can contradict themselves, and have most < least; the middle is right on average.
  if (least <= 0 && most >= 0) return 0;
  return (least + most) / 2;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Names a process or thread of the picture.
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
               .hint = "leave one of each rank in the folder"}};
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

std::string merged_json(const std::vector<RankTrace>& traces, const std::vector<double>& corrections) {
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
    std::set<std::uint64_t> buckets;
    for (const TraceEvent& event : trace.events) {
      if (buckets.insert(event.bucket).second) {
        add(name_event("thread_name", trace.rank, event.bucket, fmt::format("bucket {}", event.bucket)));
      }
      add(
          fmt::format("{{\"name\": {}, \"cat\": \"bucket\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, "
                      "\"dur\": {:.3f}, \"args\": {{\"step\": {}, \"bucket\": {}, \"parameters\": {}}}}}",
                      quoted(event.name), trace.rank, event.bucket, event.start_us + corrections[each],
                      event.duration_us, event.step, event.bucket, event.parameters));
    }
  }
  return text + "\n]}\n";
}

}  // namespace ddp::tools::trace
