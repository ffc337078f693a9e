// What a node's agent tells of its ranks, from the messages that pass it.
#include "agent/node_metrics.hpp"

#include <ddp/error.hpp>

#include "agent/job_layout.hpp"
#include "flight/flight_memory.hpp"

namespace ddp::launcher {
namespace {

struct NodeMetricsTest : ::testing::Test {
  NodeMetricsTest() {
    job_.host = "n1";
    job_.options.command = {"train.py"};
    job_.options.metrics.port = 0;
  }
  static control::PrepareAttempt plan(int epoch, int restarts) {
    const control::NodeLayout node{.host = "n0", .nproc = 3, .role = "default"};
    return {.epoch = epoch,
            .restart_count = restarts,
            .max_restarts = 2,
            .node_rank = 1,
            .log_name = "17",
            .nodes_lost = restarts,
            .progress_ms = progress_ms_,
            .nodes = {node, node}};
  }
  static control::RankEnded ended(int local, int code, bool by_signal) {
    return {.epoch = 0, .local_rank = local, .end = {.code = code, .by_signal = by_signal, .core_dumped = false}};
  }

  static inline std::int64_t progress_ms_ = 0;
  NodeJob job_;
  stream::EventLoop loop_;
};

TEST_F(NodeMetricsTest, ShowsWhoWaits) {
  NodeMetrics metrics(metrics_of(job_), loop_);
  metrics.begin(metrics_of(plan(0, 0)));
  EXPECT_THAT(metrics.text(), HasSubstr(R"(ddp_nodes_waiting{job="17",node="n1"} 0)"));
  metrics.note(control::NodesChange{.epoch = 0, .waiting = 2});
  metrics.note(control::NodesChange{.epoch = 1, .waiting = 3});
  EXPECT_THAT(metrics.text(), HasSubstr(R"(ddp_nodes_waiting{job="17",node="n1"} 2)"));
  metrics.begin(metrics_of(plan(1, 0)));
  EXPECT_THAT(metrics.text(), HasSubstr(R"(ddp_nodes_waiting{job="17",node="n1"} 0)"));
}

TEST_F(NodeMetricsTest, FollowsRanksThroughAttempts) {
  NodeMetrics metrics(metrics_of(job_), loop_);
  metrics.begin(metrics_of(plan(0, 0)));
  EXPECT_THAT(metrics.text(), HasSubstr(R"(ddp_ranks{job="17",node="n1",state="starting"} 3)"));
  metrics.note(control::RanksStarted{.epoch = 0, .pids = std::vector<std::int64_t>(3, ::getpid())});
  metrics.note(ended(1, 0, false));
  metrics.note(ended(2, SIGKILL, true));
  metrics.note(control::RankEnded{.epoch = 7, .local_rank = 0});  // of another attempt
  metrics.note(ended(3, 1, false));                               // no rank of this node
  const std::string text = metrics.text();
  for (const char* line :
       {R"(ddp_ranks{job="17",node="n1",state="running"} 1)", R"(ddp_ranks{job="17",node="n1",state="stopped"} 0)",
        R"(ddp_ranks{job="17",node="n1",state="ended"} 1)", R"(ddp_ranks{job="17",node="n1",state="failed"} 1)",
        R"(ddp_rank_exits_total{job="17",node="n1",code="0",signal=""} 1)",
        R"(ddp_rank_exits_total{job="17",node="n1",code="",signal="SIGKILL"} 1)",
        R"(ddp_rank_running{job="17",node="n1",rank="3"} 1)", R"(ddp_rank_running{job="17",node="n1",rank="5"} 0)",
        R"(ddp_rank_resident_bytes{job="17",node="n1",rank="3"})", R"(ddp_world_size{job="17",node="n1"} 6)",
        R"(ddp_attempts_total{job="17",node="n1"} 1)", R"(ddp_restarts_allowed{job="17",node="n1"} 2)",
        R"(program="train.py",user=)"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr(R"(ddp_rank_cpu_seconds_total{job="17",node="n1",rank="5"})")));
  metrics.begin(metrics_of(plan(1, 1)));
  const std::string restarted = metrics.text();
  for (const char* line :
       {R"(ddp_attempts_total{job="17",node="n1"} 2)", R"(ddp_restarts_total{job="17",node="n1"} 1)",
        R"(ddp_node_losses_total{job="17",node="n1"} 1)", R"(ddp_ranks{job="17",node="n1",state="failed"} 0)",
        R"(ddp_rank_exits_total{job="17",node="n1",code="",signal="SIGKILL"} 1)"})
    EXPECT_THAT(restarted, HasSubstr(line));
}

TEST_F(NodeMetricsTest, WithoutAPortNothingListensOrLooks) {
  job_.options.metrics.port.reset();
  const int before = ::dup(0);
  ::close(before);
  NodeMetrics metrics(metrics_of(job_), loop_);
  metrics.begin(metrics_of(plan(0, 0)));
  metrics.note(control::RanksStarted{.epoch = 0, .pids = std::vector<std::int64_t>(3, ::getpid())});
  const int after = ::dup(0);
  ::close(after);
  EXPECT_EQ(after, before) << "a descriptor was opened";
  EXPECT_FALSE(metrics.progress_due());
}

TEST_F(NodeMetricsTest, ProgressIsThatOfRanksThatTakeSteps) {
  job_.options.metrics.port.reset();
  progress_ms_ = 1;
  NodeMetrics metrics(metrics_of(job_), loop_);
  metrics.begin(metrics_of(plan(0, 0)));
  progress_ms_ = 0;
  EXPECT_FALSE(metrics.progress_due()) << "no rank runs";
  flight::FlightMemory::process().add_step({.duration = std::chrono::milliseconds(20)});
  metrics.note(control::RanksStarted{.epoch = 0, .pids = {0, ::getpid(), 0}});
  metrics.note(ended(0, 0, false));
  metrics.note(ended(2, 0, false));
  std::optional<control::Progress> progress;
  const Deadline limit = Deadline::after(std::chrono::seconds(60));
  while (!progress && !limit.expired()) progress = metrics.progress_due();
  ASSERT_TRUE(progress);
  ASSERT_EQ(progress->ranks.size(), 1U);
  EXPECT_EQ(progress->ranks[0].rank, 4);
  EXPECT_GE(progress->ranks[0].steps, 1);
  EXPECT_GE(progress->ranks[0].step_ns, 20'000'000);
}

TEST_F(NodeMetricsTest, APortThatIsTakenIsAnError) {
  const diagnostics::MetricsEndpoint other("127.0.0.1", 0, [] { return std::string(); });
  job_.options.metrics.port = other.port();
  EXPECT_THROW(NodeMetrics(metrics_of(job_), loop_), Error);
}

}  // namespace
}  // namespace ddp::launcher
