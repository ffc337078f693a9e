// `ddp-info trace`: what is a trace, and how those of several hosts come on one clock.
#include "cli/exit_error.hpp"
#include "reducer/bucket_set.hpp"
#include "trace/trace_command.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools::trace {
namespace {

using nlohmann::json;
using test::error_of;

/// Of a rank whose clock is @p ahead_us: two buckets, each launched after @p late_us and done at the same moment.
RankTrace trace_of(int rank, double ahead_us, double late_us) {
  RankTrace trace{.rank = rank, .file = "r" + std::to_string(rank) + ".json"};
  for (const std::uint64_t bucket : {0, 1}) {
    const double start = 1e15 + ahead_us + late_us + static_cast<double>(bucket) * 1000;
    trace.events.push_back({.name = "exchange",
                            .category = "bucket",
                            .thread = bucket + 1,
                            .step = 1,
                            .arguments = "{}",
                            .start_us = start,
                            .duration_us = 500 - late_us});
  }
  return trace;
}

std::string refusal(const std::string& text) {
  return error_of([&] { parse_rank_trace(text, "x.json"); }).value().what();
}

TEST(Trace, IsWhatAReducerWrites) {
  reducer::BucketTrace written(1, 3);
  written.start_step(1);
  const auto now = Deadline::Clock::now();
  written.of(0) = {.computed = now,
                   .ready = now + std::chrono::milliseconds(1),
                   .launched = now + std::chrono::milliseconds(3),
                   .done = now + std::chrono::milliseconds(7)};
  written.finish_step(12, {{0, 1, 2}},
                      {.backward = now, .backward_end = now + std::chrono::milliseconds(2), .end = now}, {4096});
  const RankTrace trace = parse_rank_trace(written.json(), "r.json");
  EXPECT_EQ(trace.rank, 3);
  ASSERT_EQ(trace.events.size(), 5U);
  EXPECT_EQ(trace.events[1].name, "backward");
  EXPECT_EQ(trace.events[4].name, "exchange");
  EXPECT_EQ(trace.events[4].step, 12U);
  EXPECT_NEAR(trace.events[4].duration_us, 4000, 1);
  const std::string merged = merged_json({trace}, {0});
  for (const char* part : {"\"bytes\":4096", "\"steps\"", "\"bucket 0\""}) EXPECT_THAT(merged, HasSubstr(part));
}

TEST(Trace, HasTheEventsOfATimelineAsTheyAre) {
  const auto events =
      timeline_events(R"([{"name": "timeline", "ph": "M"}, {"name": "QUEUE", "ph": "X", "pid": 1, "ts": 5}])");
  ASSERT_EQ(events.size(), 2U);
  const json merged = json::parse(merged_json({trace_of(0, 0, 0)}, {0}, events));
  EXPECT_EQ(merged["traceEvents"].back(), json::parse(events[1]));
  EXPECT_TRUE(timeline_events(R"([{"name": "other"}])").empty());
  EXPECT_TRUE(timeline_events(R"([{"name": "timeline"})").empty());
}

TEST(Trace, OthersAreRefusedByName) {
  EXPECT_THAT(refusal(""), HasSubstr("x.json': it is empty"));
  EXPECT_THAT(refusal("{\"traceEvents\": ["), HasSubstr("truncated"));
  EXPECT_THAT(refusal("[]"), HasSubstr("'traceEvents'"));
  EXPECT_THAT(refusal(R"({"traceEvents": []})"), HasSubstr("not a list of events"));
  const auto with = [](const char* event) { return R"({"traceEvents": [)" + std::string(event) + "]}"; };
  EXPECT_THAT(refusal(with("3")), HasSubstr("event 0: there should be an object with 'ph'"));
  EXPECT_THAT(refusal(with(R"({"ph": "X", "pid": -1})")), HasSubstr("'pid' is not a whole number"));
  EXPECT_THAT(refusal(with(R"({"ph": "B", "pid": 1})")), HasSubstr("phase X"));
  EXPECT_THAT(refusal(with(R"({"ph": "M", "pid": 1}, {"ph": "M", "pid": 2})")), HasSubstr("ranks 1 and 2"));
  EXPECT_THAT(refusal(with(R"({"ph": "X", "pid": 1, "name": "a", "cat": "step", "ts": 1e30, "dur": 0, "tid": 0,
                               "args": {"step": 1}})")),
              HasSubstr("'ts' is not a time"));
  EXPECT_THAT(error_of([] {
                one_of_each_rank({trace_of(1, 0, 0), trace_of(1, 0, 0)});
              })
                  .value()
                  .what(),
              HasSubstr("'r1.json' and 'r1.json' are both of rank 1"));
}

TEST(Trace, ClocksAreMovedOnlyWhereTheyContradictCausality) {
  // 100 us ahead may be a late launch; 20 ms are none
  const std::vector<RankTrace> traces{trace_of(0, 0, 0), trace_of(1, 100, 200), trace_of(2, 20'000, 0),
                                      trace_of(5, -20'000, 300)};
  const auto corrections = clock_corrections(traces);
  EXPECT_EQ(corrections[0], 0);
  EXPECT_EQ(corrections[1], 0);
  EXPECT_NEAR(corrections[2], -20'000, 1);  // in the middle, where both launched at once
  EXPECT_NEAR(corrections[3], 20'000 - 150, 1);
  EXPECT_EQ(clock_corrections({}).size(), 0U);
  RankTrace elsewhere = trace_of(1, 1e9, 0);
  for (TraceEvent& event : elsewhere.events) event.step = 2;
  EXPECT_EQ(clock_corrections({traces[0], elsewhere})[1], 0) << "nothing in common tells nothing";
}

TEST(Trace, OfAllRanksIsOneDocument) {
  const auto traces = one_of_each_rank({trace_of(1, 20'000, 0), trace_of(0, 0, 0)});
  const json merged = json::parse(merged_json(traces, clock_corrections(traces)));
  std::map<int, double> starts;
  std::string labels;
  for (const json& event : merged["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == 2) starts[event["pid"]] = event["ts"];
    if (event["name"] == "process_labels") labels = event["args"]["labels"];
  }
  EXPECT_NEAR(starts.at(0), starts.at(1), 1);
  EXPECT_EQ(labels, "clock moved by -20.000 ms");
}

TEST(Trace, OptionsAreAFolderAndFlags) {
  const auto parse = [](const std::vector<std::string>& words) { return parse_trace_options(words); };
  EXPECT_EQ(parse({"dir"}).folder, "dir");
  EXPECT_FALSE(parse({"dir"}).no_align);
  EXPECT_TRUE(parse({"dir", "--no-al"}).no_align);
  EXPECT_NE(parse({"-h"}).help, "");
  EXPECT_THROW(parse({}), cli::UsageError);
}

}  // namespace
}  // namespace ddp::tools::trace
