// The lines of --event-log, where they cannot be written, and that jobs share a file.
#include "report/event_log.hpp"

#include <ddp/error.hpp>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::launcher {
namespace {

using nlohmann::json;

struct EventLogTest : ::testing::Test {
  EventLogTest() : path_(::testing::TempDir() + "event_log_" + std::to_string(::getpid()) + ".jsonl") {
    std::remove(path_.c_str());
  }
  ~EventLogTest() override { std::remove(path_.c_str()); }

  EventLog open(const std::string& path) {
    return EventLog{"--event-log",
                    path,
                    {.run_id = "run7", .slurm_job_id = "", .program = "train.py", .max_restarts = 2},
                    [this](const std::string& text) { notes_.push_back(text); }};
  }
  std::vector<json> lines() const {
    std::ifstream file(path_);
    std::vector<json> found;
    for (std::string line; std::getline(file, line);) found.push_back(json::parse(line));
    return found;
  }

  std::string path_;
  std::vector<std::string> notes_;
};

JobOutcome crash_of_rank(int rank) {
  JobOutcome outcome;
  RankFailure failure{};
  failure.name.rank = rank;
  failure.name.host = "n1";
  failure.end = RankEnd{.code = 9, .by_signal = true, .core_dumped = false};
  outcome.failures.push_back(failure);
  return outcome;
}

TEST_F(EventLogTest, EachEventIsALineWithWhenAndWhose) {
  EventLog log = open(path_);
  log.node_joined(1, 2);
  log.attempt_started(0, 8, 2);
  log.progress(0, {.ranks = 8,
                   .least_steps = 90,
                   .most_steps = 100,
                   .step_s = 0.25,
                   .slowest_s = 0.3,
                   .hidden = std::nullopt,
                   .straggler_rank = 3,
                   .straggler_delay_s = 0.01});
  log.rank_ended(0, 3, "n1", {.code = 9, .by_signal = true, .core_dumped = true});
  log.node_lost(0, {.host = "n2", .node_rank = 1, .num_ranks = 4, .message = "lost", .exit_status = 1});
  log.restart(crash_of_rank(3), 0, 1);
  log.generation_started(2, {.reason = GenerationReason::node_lost,
                             .change = {.before = 2, .survivors = 1, .joined = {"n5"}},
                             .lost = {"n2"}});
  log.job_ended(JobOutcome{}, 1, 1, std::chrono::milliseconds(2500));
  const auto found = lines();
  std::vector<std::string> events;
  for (const json& each : found) {
    events.push_back(each.at("event"));
    EXPECT_EQ(each.at("schema"), "ddprun-events/1");
    EXPECT_EQ(each.at("run_id"), "run7");
    EXPECT_TRUE(each.at("slurm_job_id").is_null());
    EXPECT_THAT(each.at("time").get<std::string>(), ::testing::EndsWith("Z"));
  }
  ASSERT_THAT(events, ElementsAre("job_started", "node_joined", "attempt_started", "progress", "rank_ended",
                                  "node_lost", "restart", "generation_started", "job_ended"));
  const json progress = found[3];
  EXPECT_EQ(progress.at("steps"), json({{"least", 90}, {"most", 100}}));
  EXPECT_EQ(progress.at("step_seconds"), json({{"mean", 0.25}, {"slowest_rank", 0.3}}));
  EXPECT_TRUE(progress.at("hidden_communication").is_null());
  EXPECT_EQ(progress.at("straggler"), json({{"rank", 3}, {"delay_seconds", 0.01}}));
  EXPECT_EQ(found[0].at("program"), "train.py");
  EXPECT_EQ(found[1].at("wanted"), 2);
  EXPECT_EQ(found[2].at("world_size"), 8);
  EXPECT_EQ(found[4].at("rank"), 3);
  EXPECT_EQ(found[4].at("host"), "n1");
  EXPECT_TRUE(found[4].at("exit_code").is_null());
  EXPECT_EQ(found[4].at("signal").at("name"), "SIGKILL");
  EXPECT_EQ(found[4].at("core_dumped"), true);
  EXPECT_EQ(found[5].at("host"), "n2");
  EXPECT_EQ(found[5].at("num_ranks"), 4);
  EXPECT_EQ(found[6].at("root_cause").at("rank"), 3);
  EXPECT_EQ(found[6].at("failures").at(0).at("signal").at("name"), "SIGKILL");
  EXPECT_EQ(found[7].at("attempt"), 2);
  EXPECT_EQ(found[7].at("survivors"), 1);
  EXPECT_EQ(found[7].at("nodes_before"), 2);
  EXPECT_EQ(found[7].at("joined"), json({"n5"}));
  EXPECT_EQ(found[7].at("reason"), "node_lost");
  EXPECT_EQ(found[7].at("lost"), json({"n2"}));
  EXPECT_EQ(found[8].at("success"), true);
  EXPECT_EQ(found[8].at("seconds_total"), 2.5);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(EventLogTest, JobsShareAFile) {
  EventLog first = open(path_);
  EventLog second = open(path_);
  first.node_joined(1, 1);
  second.node_joined(1, 1);
  EXPECT_EQ(lines().size(), 4U);
}

TEST_F(EventLogTest, WhatCannotBeWrittenIsToldOnce) {
  const Error error = *ddp::test::error_of([&] { open("/nonexistent/events"); });
  EXPECT_THAT(error.what(), HasSubstr("--event-log=/nonexistent/events"));
  EXPECT_EQ(error.native(), "ENOENT (2)");
  EventLog full = open("/dev/full");
  full.node_joined(1, 1);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("No space left on device")));
}

}  // namespace
}  // namespace ddp::launcher
