// The event log of a step, from the notes of its nodes in a store; what their witnesses show and report.
#include "step_program/step_log.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "flight/flight_memory.hpp"
#include "step_program/end_reporter.hpp"
#include "step_program/node_watch.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

diagnostics::StepProgress ten_steps(int rank) {
  return {.rank = rank,
          .steps = 10,
          .step_ns = 5'000'000'000,
          .communication_ns = 100,
          .hidden_ns = 50,
          .straggler_rank = 1,
          .straggler_delay_ns = 7};
}

class StepLogTest : public ::testing::Test {
 protected:
  StepLogTest() { std::remove(path_.c_str()); }
  ~StepLogTest() override { std::remove(path_.c_str()); }

  StepLog open() { return {server_.port(), {.path = path_, .program = "train", .job = "17", .step = "17.0"}}; }
  void joins(const std::string& node) {
    EndReporter("127.0.0.1", server_.port(),
                {.name = node, .first_rank = 0, .step = {.node_list = "n[0-1]", .world_size = 2}});
  }
  void advance(StepLog& log) {
    ASSERT_TRUE(base::wait_for(log.fd(), POLLIN, Deadline::after(std::chrono::seconds(60))));
    log.advance();
  }
  std::vector<json> lines() const {
    std::ifstream file(path_);
    std::vector<json> found;
    for (std::string line; std::getline(file, line);) found.push_back(json::parse(line));
    return found;
  }
  std::vector<std::string> kinds() const {
    std::vector<std::string> found;
    for (const json& line : lines()) found.push_back(line.at("event"));
    return found;
  }

  std::string path_ = ::testing::TempDir() + "step_log_" + std::to_string(::getpid());
  store_server::StoreServer server_{{.listen_addresses = {"127.0.0.1"}}};
  StepStore store_{"127.0.0.1", server_.port()};
};

TEST_F(StepLogTest, FollowsAStepFromItsFirstNodeToItsEnd) {
  StepLog log = open();
  EXPECT_FALSE(log.due());
  joins("n1");
  advance(log);
  EXPECT_TRUE(log.due());
  joins("n0");
  advance(log);
  store_.set(report_key("n0"), encode(NodeReport{.number = 1}));
  advance(log);
  store_.set(report_key("n1"), encode(NodeReport{.number = 1}));
  advance(log);
  log.collect();
  ASSERT_THAT(kinds(), ElementsAre("job_started", "node_joined", "node_joined", "attempt_started"));
  store_.set(report_key("n0"), encode(NodeReport{.number = 2, .ranks = {ten_steps(0)}}));
  store_.get({report_key("n0")});  // it has arrived
  log.collect();
  log.collect();  // the same report
  ASSERT_EQ(lines().size(), 4U);
  store_.set(report_key("n1"), encode(NodeReport{.number = 2, .ranks = {ten_steps(1)}}));
  store_.get({report_key("n1")});
  log.collect();
  store_.set_first(end_key(0), encode(RankEnd{.rank = 0, .status = 0, .when_ms = 1, .node = "n0"}));
  store_.set_first(kFailureKey, encode(RankEnd{.rank = 1, .status = SIGKILL, .when_ms = 2'000, .node = "n1"}));
  log.end();
  const std::vector<json> found = lines();
  ASSERT_EQ(found.size(), 6U);
  EXPECT_EQ(found[0].at("schema"), "srun-events/1");
  EXPECT_EQ(found[0].at("run_id"), "17.0");
  EXPECT_EQ(found[0].at("slurm_job_id"), "17");
  EXPECT_EQ(found[2].at("joined"), 2);
  EXPECT_EQ(found[3].at("world_size"), 2);
  EXPECT_EQ(found[4].at("event"), "progress");
  EXPECT_EQ(found[4].at("ranks"), 2);
  EXPECT_EQ(found[4].at("step_seconds").at("mean"), 0.5);
  EXPECT_EQ(found[4].at("hidden_communication"), 0.5);
  EXPECT_EQ(found[4].at("straggler").at("rank"), 1);
  const json& end = found[5];
  EXPECT_EQ(end.at("success"), false);
  EXPECT_EQ(end.at("exit_status"), 128 + SIGKILL);
  EXPECT_EQ(end.at("root_cause"), json({{"kind", "rank"}, {"rank", 1}, {"host", "n1"}}));
  EXPECT_EQ(end.at("failures").at(0).at("time"), "1970-01-01T00:00:02.000Z");
  EXPECT_EQ(end.at("ended_with_0"), 1);
}

TEST_F(StepLogTest, WhoseEndsAreNotKnownHasNeitherSucceededNorFailed) {
  StepLog log = open();
  joins("n0");
  store_.get({kStepKey});
  log.end();
  EXPECT_TRUE(lines().back().at("success").is_null());
  EXPECT_EQ(lines().back().at("silent_nodes"), json({"n1"}));
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    store_.set_first(end_key(rank), encode(RankEnd{.rank = rank, .status = 0, .when_ms = 1, .node = "n0"}));
  log.end();
  EXPECT_EQ(lines().back().at("success"), true);
  EXPECT_EQ(lines().back().at("exit_status"), 0);
}

TEST(NodeReport, ComesBackAsItWas) {
  const NodeReport report{.number = 3, .ranks = {ten_steps(0), ten_steps(5)}};
  const Bytes whole = encode(report);
  EXPECT_EQ(decode_report(whole), report);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(decode_report(std::span{whole}.first(size)), Error) << size;
  EXPECT_LT(encode(NodeReport{.number = 1, .ranks = std::vector(5000, ten_steps(0))}).size(), 64 * 1024U);
}

TEST(NodeWatch, FirstReportsThatItsTasksRunThenTheirSteps) {
  NodeWatch watch({.step = "17.0",
                   .node = "n1",
                   .program = "train",
                   .world_size = 8,
                   .num_nodes = 4,
                   .local_tasks = 2,
                   .report_interval = std::chrono::seconds(60)});
  EXPECT_EQ(watch.fd(), -1) << "nobody has asked for metrics";
  watch.started(3, ::getpid());
  EXPECT_FALSE(watch.due()) << "one task is missing";
  watch.started(2, ::getpid());
  ASSERT_TRUE(watch.due());
  EXPECT_TRUE(watch.due()->expired());
  flight::FlightMemory::process().add_step({.duration = std::chrono::milliseconds(20)});
  EXPECT_EQ(watch.report(), (NodeReport{.number = 1}));
  EXPECT_FALSE(watch.due()->expired());
  watch.ended(2, 7 << 8);
  const NodeReport second = watch.report();
  ASSERT_EQ(second.ranks.size(), 1U);
  EXPECT_EQ(second.ranks[0].rank, 3);
  EXPECT_THAT(watch.text(), HasSubstr(R"(ddp_rank_exits_total{job="17.0",node="n1",code="7",signal=""} 1)"));
  EXPECT_THAT(watch.text(), HasSubstr(R"(ddp_nodes{job="17.0",node="n1"} 4)"));
}

}  // namespace
}  // namespace ddp::srun_plugin
