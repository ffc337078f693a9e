// The document: PyTorch's fields where it has them, the rest under "ddp".
#include "collectives/flight/flight_dump.hpp"

#include <gtest/gtest.h>

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::collectives {
namespace {

using nlohmann::json;

class FlightDump : public ::testing::Test {
 protected:
  json dump(const std::string& reason = "a test") {
    return json::parse(to_json(recorder_.snapshot(), FlightJob{.name = "job7.0", .attempt = 1}, reason));
  }

  FlightRecorder recorder_{16};
  std::shared_ptr<FlightGroup> group_ = recorder_.join({.name = "ddp.0.world",
                                                        .backend = "host",
                                                        .rank = 1,
                                                        .global_ranks = {0, 4, 2},
                                                        .timeout = std::chrono::milliseconds(1500)});
  std::array<float, 12> values_{};
};

TEST_F(FlightDump, HasPyTorchsFields) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.reduce_op = ReduceOp::max;
  operation.sequence = 9;
  operation.count = values_.size();
  operation.input = operation.output = std::span(values_);
  const auto slot = group_->record(operation);
  group_->started(slot);
  const json document = dump();
  EXPECT_EQ(document["version"], "2.10");
  EXPECT_EQ(document["pg_config"]["ddp.0.world"]["ranks"], "[0, 4, 2]");
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_enqueued_collective"], 9);
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_started_collective"], 9);
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_completed_collective"], -1);
  ASSERT_EQ(document["entries"].size(), 1U);
  const json& entry = document["entries"][0];
  EXPECT_EQ(entry["record_id"], 1);
  EXPECT_EQ(entry["process_group"], (json::array({"ddp.0.world", "undefined"})));
  EXPECT_EQ(entry["collective_seq_id"], 9);
  EXPECT_EQ(entry["profiling_name"], "gloo:all_reduce");
  EXPECT_EQ(entry["input_sizes"].dump(), "[[12]]");
  EXPECT_EQ(entry["output_sizes"].dump(), "[[12]]");
  EXPECT_EQ(entry["input_dtypes"].dump(), "[\"Float\"]");
  EXPECT_EQ(entry["state"], "started");
  EXPECT_EQ(entry["is_p2p"], false);
  EXPECT_EQ(entry["retired"], false);
  EXPECT_EQ(entry["timeout_ms"], 1500);
  EXPECT_TRUE(entry["time_discovered_completed_ns"].is_null());
  EXPECT_GE(entry["time_discovered_started_ns"], entry["time_created_ns"]);
  EXPECT_EQ(entry["frames"].dump(), "[]");
  EXPECT_EQ(entry["ddp"]["reduction"], "max");
  EXPECT_EQ(entry["ddp"]["count"], 12);
  EXPECT_EQ(entry["ddp"]["input_bytes"], 48);
  EXPECT_EQ(entry["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
  EXPECT_EQ(entry["ddp"]["state"], "started");
}

TEST_F(FlightDump, SaysWhoseItIs) {
  const json document = dump("a \xff reason");
  const json& own = document["ddp"];
  EXPECT_EQ(own["schema"], "ddp-flight/1");
  EXPECT_EQ(own["job"], "job7.0");
  EXPECT_EQ(own["attempt"], 1);
  EXPECT_EQ(own["rank"], 4);
  EXPECT_EQ(own["reason"], "a \xef\xbf\xbd reason");
  EXPECT_EQ(own["groups"][0]["ranks"].dump(), "[0,4,2]");
  EXPECT_EQ(own["groups"][0]["backend"], "host");
  EXPECT_LE(own["begun_ns"], own["written_ns"]);
  EXPECT_TRUE(document["entries"].empty());
}

TEST_F(FlightDump, TransfersCountRanksByTheirPlaceInTheWorld) {
  Operation operation;
  operation.kind = OperationKind::send;
  operation.root = 2;  // rank 2 of the world, the second in its order; the own rank 4 is the third
  operation.tag = 5;
  operation.count = values_.size();
  operation.input = std::span(values_);
  group_->record(operation);
  operation.kind = OperationKind::recv;
  group_->finished(group_->record(operation), true);
  const json entries = dump()["entries"];
  EXPECT_EQ(entries[0]["profiling_name"], "gloo:send 2->1");
  EXPECT_EQ(entries[1]["profiling_name"], "gloo:recv 2<-1");
  EXPECT_EQ(entries[1]["p2p_seq_id"], 2);
  EXPECT_EQ(entries[1]["state"], "completed");
  EXPECT_EQ(entries[1]["retired"], true);
  EXPECT_EQ(entries[0]["is_p2p"], true);
  EXPECT_EQ(entries[0]["ddp"]["tag"], 5);
  EXPECT_EQ(entries[0]["ddp"]["fingerprint"], entries[1]["ddp"]["fingerprint"]);
}

TEST_F(FlightDump, PartsOfDifferentSizeHaveTheirFingerprint) {
  Operation operation;
  operation.kind = OperationKind::all_gather_v;
  operation.sequence = 1;
  operation.counts = {3, 4, 5};
  operation.input = std::span(values_).first(4);
  operation.output = std::span(values_);
  group_->record(operation);
  const json entry = dump()["entries"][0];
  EXPECT_EQ(entry["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
  EXPECT_EQ(entry["input_sizes"], entry["output_sizes"]) << "PyTorch's analyser takes other sizes for a mistake";
  EXPECT_EQ(entry["ddp"]["input_bytes"], 16);
}

TEST_F(FlightDump, ScaledSumsHaveTheirFingerprint) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.sequence = 1;
  operation.prescale = 0.5;
  operation.input = operation.output = std::span(values_);
  group_->record(operation);
  EXPECT_EQ(dump()["entries"][0]["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
}

TEST_F(FlightDump, FailedOperationsStayStartedForPyTorch) {
  Operation operation;
  operation.sequence = 1;
  group_->finished(group_->record(operation), false);
  const json entry = dump()["entries"][0];
  EXPECT_EQ(entry["state"], "scheduled");
  EXPECT_EQ(entry["ddp"]["state"], "failed");
  EXPECT_EQ(entry["input_dtypes"].dump(), "[]");
}

TEST(FlightJob, IsNamedByTheLauncher) {
  using Variables = std::map<std::string, std::string, std::less<>>;
  const auto name = [](Variables variables) {
    return FlightJob::of(base::Environment{std::move(variables)}).file_name(3);
  };
  EXPECT_EQ(name({}), "ddp.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "17"}, {"SLURM_STEP_ID", "2"}}), "job17.2.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "17"}}), "job17.rank3.json");
  EXPECT_EQ(name({{"TORCHELASTIC_RESTART_COUNT", "2"}}), "ddp.attempt2.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "../x"}, {"TORCHELASTIC_RESTART_COUNT", "-1"}}), "ddp.rank3.json");
}

}  // namespace
}  // namespace ddp::collectives
