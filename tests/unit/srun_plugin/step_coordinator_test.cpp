// A step's coordinator in a thread, with test connections as nodes: what the nodes agree on, and what the coordinator
// reports about the step.
#include "step_program/step_coordinator.hpp"

#include <sys/eventfd.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/unique_fd.hpp"
#include "control/handshake.hpp"
#include "diagnostics/hang/rank_facts.hpp"
#include "store_server/witness.hpp"

namespace ddp::srun_plugin {
namespace {

using nlohmann::json;
namespace control = launcher::control;

Deadline in_a_minute() { return Deadline::after(60s); }

control::Interface interface(std::string name, std::string address, bool routes, bool fabric = false) {
  return {.name = std::move(name),
          .address = std::move(address),
          .prefix_length = 24,
          .fabric = fabric,
          .routes_to_peers = routes,
          .rate_mbps = 1000};
}

/// Node i: management Ethernet that routes, and an RDMA network with a different name on each node.
std::vector<control::Interface> two_networks(int node) {
  return {interface("ib" + std::to_string(node), "10.1.0." + std::to_string(node + 1), false, true),
          interface("eth0", "10.0.0." + std::to_string(node + 1), true)};
}

launcher::RankEnd exited(int code) { return {.code = code, .by_signal = false, .core_dumped = false}; }
launcher::RankEnd killed(int signal) { return {.code = signal, .by_signal = true, .core_dumped = false}; }

/// An agent.
class NodeConnection {
 public:
  NodeConnection(std::uint16_t port, const control::Secret& secret, std::string host, control::StepTasks tasks,
                 std::vector<control::Interface> interfaces, std::vector<std::string> addresses = {},
                 bool refuses = false)
      : connection_(control::connect({"127.0.0.1"}, port, secret, in_a_minute())) {
    connection_.send(control::Hello{.version = DDP_VERSION_STRING,
                                    .host = std::move(host),
                                    .addresses = std::move(addresses),
                                    .nproc = refuses ? 0 : static_cast<int>(tasks.ranks.size()),
                                    .interfaces = std::move(interfaces)});
    connection_.send(tasks);
  }
  void send(const control::Message& message) { connection_.send(message); }
  /// The next message of this kind; other kinds stay queued. Empty at the deadline.
  template <class Kind>
  std::optional<Kind> next(Deadline deadline = in_a_minute()) {
    for (;; ::usleep(1000)) {
      for (control::Message& message : connection_.receive()) messages_.push_back(std::move(message));
      for (auto each = messages_.begin(); each != messages_.end(); ++each) {
        if (!std::holds_alternative<Kind>(*each)) continue;
        Kind found = std::get<Kind>(std::move(*each));
        messages_.erase(each);
        return found;
      }
      if (deadline.expired()) return std::nullopt;
    }
  }
  std::string network() {
    return next<control::PrepareAttempt>().value_or(control::PrepareAttempt{}).nodes.at(0).socket_interface;
  }
  /// The last end has arrived, and all messages before it.
  void ends(int local, launcher::RankEnd end) {
    send(control::RankEnded{.local_rank = local, .end = end});
    EXPECT_EQ(next<control::RankEndNoted>().value().local_rank, local);
  }

 private:
  control::Connection connection_;
  std::vector<control::Message> messages_;
};

struct StepCoordinatorTest : ::testing::Test {
  StepCoordinatorTest() { testing::internal::CaptureStderr(); }
  ~StepCoordinatorTest() override {
    if (thread_.joinable()) end();
  }

  void begin(StepCoordinatorOptions options = {.failure_ends_step = true, .nodes_expected = true, .patience = 3600s}) {
    options.program = "train";
    options.step = "17.0";
    options.job = "17";
    coordinator_ = std::make_unique<StepCoordinator>(std::move(options), secret_, loop_);
    stop_.reset(::eventfd(0, EFD_CLOEXEC));
    loop_.watch(stop_.get(), [this] { stopped_ = true; });
    thread_ = std::thread([this] {
      while (!stopped_) {
        loop_.run_once(coordinator_->next_deadline().value_or(Deadline::after(1h)));
        coordinator_->time_passed();
      }
      loop_.forget(stop_.get());
      coordinator_->end();
    });
  }
  /// Ends the step. @return the messages about it
  std::string end() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
    return testing::internal::GetCapturedStderr();
  }
  /// Of a step with two ranks on each of its nodes.
  std::unique_ptr<NodeConnection> node(int number, int nodes = 2, std::vector<std::string> addresses = {},
                                       bool refuses = false) {
    control::StepTasks tasks{.node_list = "n[0-" + std::to_string(nodes - 1) + "]", .world_size = 2 * nodes};
    tasks.ranks = {2 * number, 2 * number + 1};
    return std::make_unique<NodeConnection>(coordinator_->port(), secret_, "n" + std::to_string(number), tasks,
                                            two_networks(number), std::move(addresses), refuses);
  }
  std::vector<json> events() const {
    std::ifstream file(path_);
    std::vector<json> found;
    for (std::string line; std::getline(file, line);) found.push_back(json::parse(line));
    return found;
  }

  const std::string path_ = ::testing::TempDir() + "step_events_" + std::to_string(::getpid());
  const control::Secret secret_ = control::Secret::random();
  stream::EventLoop loop_;
  std::unique_ptr<StepCoordinator> coordinator_;
  base::UniqueFd stop_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

// ---- what nodes agree on ----------------

TEST_F(StepCoordinatorTest, NodesTakeTheirInterfaceOfTheCommonNetworkAndTheStoreBesideSrun) {
  begin();
  const auto n1 = node(1);
  const auto n0 = node(0);
  EXPECT_EQ(n0->network(), "ib0");
  EXPECT_EQ(n1->network(), "ib1");
  const auto start = n1->next<control::StartAttempt>().value();
  EXPECT_THAT(start.store_addresses, IsEmpty());
  const auto port = static_cast<std::uint16_t>(start.store_port);
  EXPECT_NO_THROW(
      store_server::Witness("127.0.0.1", port, store_server::StoreKey::parse(start.store_key), in_a_minute()));
  store_server::check_served("127.0.0.1", port, in_a_minute());
  EXPECT_EQ(n0->next<control::StartAttempt>(), start);
  EXPECT_EQ(end(), "");
}

TEST_F(StepCoordinatorTest, ASilentNodeIsNamedOnceAndAllUseTheirRoutes) {
  begin({.patience = 300ms});
  const auto n0 = node(0, 3);
  const auto n2 = node(2, 3);
  const auto plan = n0->next<control::PrepareAttempt>().value();
  EXPECT_EQ(plan.nodes.at(0).socket_interface, "");
  EXPECT_THAT(plan.nodes.at(0).socket_reason, StartsWith("n1 did not take part"));
  EXPECT_TRUE(n2->next<control::StartAttempt>());
  const auto late = node(1, 3);
  EXPECT_EQ(late->network(), "");
  EXPECT_TRUE(late->next<control::StartAttempt>());
  EXPECT_THAT(end(), MatchesRegex("ddp: warning: the nodes of this step do not agree on a network: n1 did not take "
                                  "part within 0.3 s [^\n]*; each node uses[^\n]*\n"));
}

TEST_F(StepCoordinatorTest, Rank0sNodeServesTheStoreWhereSrunIsElsewhere) {
  begin();
  const auto n1 = node(1);
  const auto n0 = node(0, 2, {"10.0.0.1"});
  EXPECT_TRUE(n0->next<control::PrepareAttempt>().value().serve_store);
  EXPECT_FALSE(n1->next<control::PrepareAttempt>().value().serve_store);
  n1->send(control::AttemptPrepared{.store_port = 1, .store_key = "not its duty"});
  n0->send(control::AttemptPrepared{.store_port = 4711, .store_key = "key"});
  const control::StartAttempt expected{.store_addresses = {"10.0.0.1"}, .store_port = 4711, .store_key = "key"};
  EXPECT_EQ(n0->next<control::StartAttempt>(), expected);
  EXPECT_EQ(n1->next<control::StartAttempt>(), expected);
  EXPECT_EQ(end(), "");
}

TEST_F(StepCoordinatorTest, WhereThatNodeFailsOrIsLostTheStoreIsBesideSrun) {
  for (const bool lost : {false, true}) {
    if (coordinator_) {
      end();
      testing::internal::CaptureStderr();
      stopped_ = false;
    }
    begin();
    const auto n1 = node(1);
    auto n0 = node(0, 2, {"10.0.0.1"});
    EXPECT_TRUE(n0->next<control::PrepareAttempt>().value().serve_store);
    lost ? n0.reset() : n0->send(control::AttemptFailed{.message = "no port is free"});
    EXPECT_THAT(n1->next<control::StartAttempt>().value().store_addresses, IsEmpty()) << lost;
  }
}

TEST_F(StepCoordinatorTest, ANodeThatRefusesKeepsAllProgramsFromStarting) {
  begin({.patience = 100ms});
  const auto n0 = node(0);
  const auto n1 = node(1, 2, {}, true);
  EXPECT_FALSE(n0->next<control::PrepareAttempt>(Deadline::after(400ms)));
  n1->send(control::SignalReceived{.signal = SIGTERM, .by_slurm = true});
  EXPECT_EQ(n0->next<control::Finish>().value().exit_status, 128 + SIGTERM);
  EXPECT_TRUE(node(0)->next<control::Finish>()) << "who comes later, too";
}

TEST_F(StepCoordinatorTest, OnceProgramsHaveStartedASignalIsTheirs) {
  begin();
  const auto n0 = node(0), n1 = node(1);
  EXPECT_TRUE(n0->next<control::StartAttempt>());
  n0->send(control::SignalReceived{.signal = SIGTERM, .by_slurm = true});
  n0->ends(0, exited(0));
  EXPECT_FALSE(n1->next<control::Finish>(Deadline::after(0ms)));
}

// ---- messages about the step ----------------

TEST_F(StepCoordinatorTest, NothingIsSaidOfAGoodStep) {
  begin();
  const auto n0 = node(0), n1 = node(1);
  for (const int local : {0, 1}) n0->ends(local, exited(0));
  for (const int local : {0, 1}) n1->ends(local, exited(0));
  EXPECT_EQ(end(), "");
  EXPECT_EQ(coordinator_->failure_status(), 0);
}

TEST_F(StepCoordinatorTest, TheFailureIsOneLineAtOnceAndDdprunsReportAtTheEnd) {
  begin();
  const auto n0 = node(0), n1 = node(1);
  n0->send(control::RanksStarted{.pids = {100, 101}});
  n1->ends(0, exited(0));
  n0->ends(1, exited(3));
  n0->ends(0, killed(SIGTERM));  // by Slurm, then
  n1->ends(1, killed(SIGTERM));
  const std::string said = end();
  EXPECT_THAT(said, StartsWith("srun --ddp: rank 1 on n0 failed with exit code 3; the step ends\n"));
  for (const char* line :
       {"train FAILED", "4 ranks on 2 nodes", "Root Cause (first observed failure):", "rank      : 1 (local_rank: 1)",
        "exitcode  : 3 (pid: 101)", "Ended early: rank 2 (n1) ended with exit code 0, ", "<NO_OTHER_FAILURES>",
        "2 other ranks were ended by Slurm."})
    EXPECT_THAT(said, HasSubstr(line));
  EXPECT_EQ(coordinator_->failure_status(), 3);
}

TEST_F(StepCoordinatorTest, ACrashIsTheCauseOfWhatOthersReportedBefore) {
  begin();
  const auto n0 = node(0), n1 = node(1);
  n0->ends(0, exited(1));  // it has lost its peer
  n1->ends(0, killed(SIGSEGV));
  EXPECT_THAT(end(), AllOf(StartsWith("srun --ddp: rank 2 on n1 was ended by SIGSEGV (11); the step ends\n"),
                           HasSubstr("rank      : 0 (local_rank: 0)")));
  EXPECT_EQ(coordinator_->failure_status(), 128 + SIGSEGV);
}

TEST_F(StepCoordinatorTest, AStepThatGoesOnListsAllFailures) {
  begin({.failure_ends_step = false, .patience = 3600s});
  const auto n0 = node(0), n1 = node(1);
  n0->ends(0, exited(1));
  n1->ends(0, exited(2));
  const std::string said = end();
  EXPECT_THAT(said, StartsWith("srun --ddp: rank 0 on n0 failed with exit code 1; the step continues, as "));
  EXPECT_THAT(said, HasSubstr("exitcode  : 2 (pid: 0)"));
  EXPECT_THAT(said, Not(HasSubstr("ended by Slurm")));
}

TEST_F(StepCoordinatorTest, AStepThatIsCancelledHasNoReport) {
  begin();
  const auto n0 = node(0), n1 = node(1);
  for (const auto* each : {&n0, &n1}) {
    for (const int local : {0, 1}) (*each)->ends(local, killed(SIGTERM));
  }
  EXPECT_THAT(end(), MatchesRegex("srun --ddp: rank 0 on n0 was ended by SIGTERM \\(15\\); the step ends "
                                  "\\(scancel, [^\n]*\\)\n"));
  EXPECT_EQ(coordinator_->failure_status(), 128 + SIGTERM);
}

TEST_F(StepCoordinatorTest, NodesThatWereNeverHeardOfAreNamedBeforeTheConsequences) {
  begin();
  const auto n0 = node(0);
  n0->ends(0, killed(SIGTERM));
  EXPECT_THAT(end(), MatchesRegex("srun --ddp: n1 did not take part in this step [^\n]*\n"));
}

TEST_F(StepCoordinatorTest, AStepWithoutAnyNodeIsToldAfterAWhileOnly) {
  begin();
  EXPECT_EQ(end(), "");
  testing::internal::CaptureStderr();
  stopped_ = false;
  begin();
  std::this_thread::sleep_for(2100ms);
  EXPECT_THAT(end(), HasSubstr("no node of this step has reported"));
}

TEST_F(StepCoordinatorTest, WhoHangsIsToldOnceAllNodesStandStill) {
  begin({.patience = 3600s, .hang_report_after = 400ms});
  const auto n0 = node(0), n1 = node(1);
  EXPECT_EQ(n0->next<control::PrepareAttempt>().value().still_after_ms, 400);
  for (const auto* each : {&n0, &n1}) (*each)->send(control::RanksStarted{.pids = {1, 1}});
  n0->send(control::RanksStill{.still = true});
  EXPECT_FALSE(n1->next<control::ObserveRanks>(Deadline::after(300ms))) << "n1 gets on";
  n1->send(control::RanksStill{.still = true});
  for (const auto* each : {&n0, &n1}) {
    EXPECT_TRUE((*each)->next<control::ObserveRanks>());
    (*each)->send(control::RanksObserved{
        .facts = diagnostics::encode(diagnostics::HostFacts{.host = each == &n0 ? "n0" : "n1", .notes = {"a note"}})});
  }
  n0->ends(0, exited(0));
  n1->ends(0, exited(0));
}

TEST_F(StepCoordinatorTest, TheEventLogIsDdpruns) {
  std::remove(path_.c_str());
  begin({.failure_ends_step = true, .patience = 3600s, .event_log = path_});
  const auto n0 = node(0), n1 = node(1);
  for (const auto* each : {&n0, &n1}) (*each)->send(control::RanksStarted{.pids = {1, 2}});
  const auto ten_steps = [](int rank) {
    return control::Progress{
        .ranks = {{.rank = rank, .steps = 10, .step_ns = 5'000'000'000, .straggler_rank = 1, .straggler_delay_ns = 7}}};
  };
  n0->send(ten_steps(0));
  n0->ends(0, exited(0));
  n1->send(ten_steps(2));
  n1->ends(0, killed(SIGKILL));
  end();
  const std::vector<json> found = events();
  std::map<std::string, json> last;
  for (const json& line : found) last[line.at("event")] = line;
  ASSERT_EQ(found.size(), 8U);
  EXPECT_EQ(found[0].at("schema"), "ddprun-events/1");
  EXPECT_EQ(found[0].at("run_id"), "17.0");
  EXPECT_EQ(found[0].at("slurm_job_id"), "17");
  EXPECT_EQ(last["node_joined"].at("joined"), 2);
  EXPECT_EQ(last["attempt_started"].at("world_size"), 4);
  EXPECT_EQ(last["progress"].at("ranks"), 2);
  EXPECT_EQ(last["rank_ended"].at("host"), "n1");
  const json& over = found.back();
  EXPECT_EQ(over.at("event"), "job_ended");
  EXPECT_EQ(over.at("success"), false);
  EXPECT_EQ(over.at("exit_status"), 128 + SIGKILL);
  EXPECT_EQ(over.at("root_cause"), json({{"kind", "rank"}, {"rank", 2}, {"host", "n1"}}));
  EXPECT_EQ(over.at("ended_early").at(0).at("rank"), 0);
  std::remove(path_.c_str());
}

TEST_F(StepCoordinatorTest, WhoseEndsAreNotKnownHasNeitherSucceededNorFailed) {
  std::remove(path_.c_str());
  begin({.patience = 3600s, .event_log = path_});
  const auto n0 = node(0), n1 = node(1);
  n0->ends(0, exited(0));
  end();
  EXPECT_TRUE(events().back().at("success").is_null());
  EXPECT_TRUE(events().back().at("exit_status").is_null());
  std::remove(path_.c_str());
}

TEST_F(StepCoordinatorTest, APortOfTheRangeIsTaken) {
  begin();
  const std::uint16_t taken = coordinator_->port();
  stream::EventLoop loop;
  EXPECT_THROW(StepCoordinator({.ports = stream::PortRange{taken, taken}}, secret_, loop), Error);
  const auto last = static_cast<std::uint16_t>(taken < 65000 ? taken + 40 : taken);
  const auto first = static_cast<std::uint16_t>(last - 40);
  const StepCoordinator other({.ports = stream::PortRange{first, last}}, secret_, loop);
  EXPECT_GE(other.port(), first);
  EXPECT_LE(other.port(), last);
}

}  // namespace
}  // namespace ddp::srun_plugin
