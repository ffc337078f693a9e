// How agents find their coordinator: which one leads, at which port, with which secret, and what stops them.
#include "launch/rendezvous.hpp"

#include <barrier>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "support/error_of.hpp"
#include "support/fake_pmi_server.hpp"
#include "support/left_children.hpp"

namespace ddp::launcher {
namespace {

using ddp::test::error_of;
using ddp::test::thrown_by;
using std::chrono::seconds;

using Variables = std::map<std::string, std::string, std::less<>>;

const std::string kHex = std::string(64, 'a');

Deadline patience() { return Deadline::after(seconds(60)); }

/// Whether an agent that follows @p rendezvous reaches @p listener.
bool reaches(const Rendezvous& rendezvous, control::Listener& listener) {
  std::optional<control::Connection> agent;
  std::thread connecting(
      [&] { agent.emplace(control::connect({"127.0.0.1"}, rendezvous.port, rendezvous.provers, patience())); });
  std::vector<control::Connection> proven;
  for (const Deadline limit = patience(); proven.empty() && !limit.expired();) {
    for (control::Connection& connection : listener.accept_ready()) proven.push_back(std::move(connection));
  }
  connecting.join();
  return agent && agent->open() && proven.size() == 1;
}

// ---- the point as text

TEST(RendezvousPoint, SurvivesAnEnvironmentVariable) {
  for (const char* host : {"", "n1"}) {
    const RendezvousPoint point{
        .addresses = {"10.0.0.1", "fe80::1", "n1"}, .port = 65535, .secret = control::Secret::random(), .host = host};
    const RendezvousPoint read = RendezvousPoint::decode(point.encode());
    EXPECT_EQ(read.addresses, point.addresses);
    EXPECT_EQ(read.port, point.port);
    EXPECT_EQ(read.secret.to_hex(), point.secret.to_hex());
    EXPECT_EQ(read.host, host);
  }
}

TEST(RendezvousPoint, WhatIsNoPointIsRefused) {
  for (const std::string& text : {std::string{}, std::string{";"}, "n1;" + kHex, "n1;0;" + kHex, "n1;65536;" + kHex,
                                  "n1;x;" + kHex, "n1;1x;" + kHex, ";1;" + kHex, ",;1;" + kHex, std::string{"n1;1;"},
                                  std::string{"n1;1;abc"}, "n1;1;" + kHex + "a"}) {
    const auto error = error_of([&] { RendezvousPoint::decode(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument) << text;
  }
  EXPECT_THAT(error_of([] { RendezvousPoint::decode("n1"); })->what(),
              AllOf(HasSubstr("DDPRUN_AGENT"), HasSubstr("unset it")));
}

// ---- frontend

TEST(FrontendRendezvous, ItsAgentsReachIt) {
  const FrontendRendezvous frontend = meet_as_frontend({"192.0.2.1", "127.0.0.1"});
  ASSERT_TRUE(frontend.listener);
  EXPECT_EQ(frontend.point.port, frontend.listener->port());
  const base::Environment environment{
      Variables{{std::string{kAgentVariable}, frontend.point.encode()}, {"SLURM_PROCID", "3"}, {"SLURM_NODEID", "1"}}};
  const Rendezvous agent = meet_as_frontend_agent(environment, patience());
  EXPECT_FALSE(agent.listener);
  EXPECT_THAT(agent.addresses, ElementsAre("192.0.2.1", "127.0.0.1"));
  EXPECT_EQ(agent.order, 3);
  EXPECT_TRUE(reaches(agent, *frontend.listener));
}

TEST(FrontendRendezvous, EachJobHasItsOwnSecret) {
  EXPECT_NE(meet_as_frontend({"127.0.0.1"}).point.secret.to_hex(),
            meet_as_frontend({"127.0.0.1"}).point.secret.to_hex());
}

TEST(FrontendRendezvous, WithoutTheVariableThereIsNone) {
  EXPECT_TRUE(error_of([] { meet_as_frontend_agent(base::Environment{Variables{}}, patience()); }));
}

// ---- endpoint

struct EndpointRendezvous : ::testing::Test {
  static LaunchOptions c10d(const std::string& host = "127.0.0.1") {
    LaunchOptions options;
    options.rendezvous.backend = RendezvousBackend::c10d;
    options.rendezvous.endpoint_host = host;
    options.rendezvous.endpoint_port = 0;  // the kernel chooses
    options.rendezvous.run_id = "run";
    return options;
  }
  static LaunchOptions fixed(int node_rank) {
    LaunchOptions options;
    options.rendezvous.backend = RendezvousBackend::fixed;
    options.rendezvous.node_rank = node_rank;
    options.rendezvous.master_port = 0;
    return options;
  }
  EndpointRendezvous() {
    std::string folder = (std::filesystem::temp_directory_path() / "rendezvous.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    home_ = folder;
  }
  ~EndpointRendezvous() override { std::filesystem::remove_all(home_); }

  Rendezvous meet(const LaunchOptions& options, const std::string& phrase = {}) const {
    Variables variables{{"HOME", home_}, {"DDP_MUNGE_SOCKET", "/no/munge"}};
    if (!phrase.empty()) variables["DDP_RDZV_SECRET"] = phrase;
    return meet_at_endpoint(options, base::Environment{variables});
  }

  std::string home_;
};

TEST_F(EndpointRendezvous, TheHostsOwnAgentLeads) {
  for (const std::string& host : {std::string{"127.0.0.1"}, std::string{"localhost"}, base::host_name()}) {
    const Rendezvous leader = meet(c10d(host));
    ASSERT_TRUE(leader.listener) << host;
    EXPECT_NE(leader.port, 0);
    EXPECT_EQ(leader.order, -1);
    EXPECT_THAT(leader.addresses, ElementsAre(host));
  }
}

TEST_F(EndpointRendezvous, AgentsOfOtherHostsDoNotLead) {
  // An address for documentation (RFC 5737), and an invalid name.
  for (const std::string& host : {std::string{"192.0.2.1"}, std::string(300, 'x')}) {
    LaunchOptions options = c10d(host);
    options.rendezvous.endpoint_port = 4000;
    const Rendezvous follower = meet(options);
    EXPECT_FALSE(follower.listener) << host;
    EXPECT_EQ(follower.port, 4000);
    EXPECT_THAT(follower.addresses, ElementsAre(host));
  }
}

TEST_F(EndpointRendezvous, IsHostDecidesBeforeTheName) {
  LaunchOptions options = c10d("192.0.2.1");
  options.rendezvous.is_host = true;
  EXPECT_TRUE(meet(options).listener);
  options = c10d("127.0.0.1");
  options.rendezvous.is_host = false;
  EXPECT_FALSE(meet(options).listener);
}

TEST_F(EndpointRendezvous, ListensAtItsOwnAddressAlone) {
  for (const char* host : {"127.0.0.1", "127.0.0.9"}) {
    const Rendezvous leader = meet(c10d(host));
    EXPECT_THAT(leader.listener->addresses(), ElementsAre(host + (":" + std::to_string(leader.port))));
  }
  const Rendezvous local = meet(c10d("localhost"));
  EXPECT_THAT(local.listener->addresses(),
              ::testing::Each(::testing::AnyOf(::testing::StartsWith("127."), ::testing::StartsWith("[::1]"))));
}

TEST_F(EndpointRendezvous, NodeRankZeroLeadsAStaticOne) {
  const Rendezvous leader = meet(fixed(0));
  EXPECT_TRUE(leader.listener);
  EXPECT_EQ(leader.order, 0);
  const Rendezvous follower = meet(fixed(2));
  EXPECT_FALSE(follower.listener);
  EXPECT_EQ(follower.order, 2);
}

TEST_F(EndpointRendezvous, NodeRankZeroWithAnotherHostsAddressIsTold) {
  LaunchOptions options = fixed(0);
  options.rendezvous.master_addr = "192.0.2.1";
  const Error error = thrown_by([&] { meet(options); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(base::host_name() + ", node 0, has no address '192.0.2.1'"),
                                  HasSubstr("--master-addr"), HasSubstr("is_host=1")));
  options.rendezvous.is_host = true;  // behind a gateway
  EXPECT_TRUE(meet(options).listener);
}

TEST_F(EndpointRendezvous, PortsAreTorchrunsUnlessGiven) {
  LaunchOptions options = fixed(1);
  options.rendezvous.master_port.reset();
  EXPECT_EQ(meet(options).port, 29500);
  options.rendezvous.master_port = 4001;
  EXPECT_EQ(meet(options).port, 4001);
  options = c10d("192.0.2.1");
  options.rendezvous.endpoint_port.reset();
  EXPECT_EQ(meet(options).port, 29400);
}

TEST_F(EndpointRendezvous, AFollowerReachesTheLeader) {
  const Rendezvous leader = meet(c10d());
  LaunchOptions options = c10d();
  options.rendezvous.endpoint_port = leader.port;
  options.rendezvous.is_host = false;
  EXPECT_TRUE(reaches(meet(options), *leader.listener));
}

TEST_F(EndpointRendezvous, OnlyWhoHasThePhraseReachesTheLeader) {
  const Rendezvous leader = meet(c10d(), "phrase");
  LaunchOptions options = c10d();
  options.rendezvous.endpoint_port = leader.port;
  options.rendezvous.is_host = false;
  EXPECT_TRUE(reaches(meet(options, "phrase"), *leader.listener));
  for (const char* wrong : {"phrases", ""}) {
    const Rendezvous follower = meet(options, wrong);
    std::optional<Error> error;
    std::atomic<bool> over = false;
    std::thread connecting([&] {
      error = error_of([&] { follower.connect(); });
      over = true;
    });
    while (!over) EXPECT_TRUE(leader.listener->accept_ready().empty());
    connecting.join();
    EXPECT_EQ(error.value().code(), ErrorCode::conflict);
    EXPECT_THAT(error->what(), HasSubstr("DDP_RDZV_SECRET"));
  }
}

TEST_F(EndpointRendezvous, ATakenPortMeansThatAnotherAgentOfThisHostLeads) {
  const Rendezvous leader = meet(c10d());
  LaunchOptions options = c10d();
  options.rendezvous.endpoint_port = leader.port;
  const Rendezvous second = meet(options);
  EXPECT_FALSE(second.listener);
  EXPECT_EQ(second.port, leader.port);
  EXPECT_EQ(second.port_taken, "another process of this host listens at port " + std::to_string(leader.port));
}

TEST_F(EndpointRendezvous, AStrangerAtThePortIsNotBelieved) {
  const control::Listener stranger{"127.0.0.1", 0, control::Secret::random()};
  LaunchOptions options = c10d();
  options.rendezvous.endpoint_port = stranger.port();
  options.rendezvous.read_timeout = seconds(1);  // this one does not even answer
  const Error error = thrown_by([&] { meet(options).connect(); });
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("another process of this host listens at port"), HasSubstr("choose another port")));
}

TEST_F(EndpointRendezvous, ATakenPortIsAnErrorForTheOneThatMustLead) {
  const Rendezvous other = meet(c10d());
  LaunchOptions must = c10d();
  must.rendezvous.endpoint_port = other.port;
  must.rendezvous.is_host = true;
  LaunchOptions first = fixed(0);
  first.rendezvous.master_port = other.port;
  for (const LaunchOptions& options : {must, first}) {
    const Error error = thrown_by([&] { meet(options); });
    EXPECT_EQ(error.code(), ErrorCode::system);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("EADDRINUSE"), HasSubstr(std::to_string(other.port))));
  }
}

TEST_F(EndpointRendezvous, OfSeveralAgentsThatRaceExactlyOneLeads) {
  constexpr int kAgents = 6;
  LaunchOptions options = c10d();
  options.rendezvous.endpoint_port = meet(c10d()).port;  // free again
  std::barrier together(kAgents);
  std::vector<std::optional<Rendezvous>> agents(kAgents);
  std::vector<std::thread> threads;
  for (auto& agent : agents) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      agent.emplace(meet(options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  int leaders = 0;
  for (const auto& agent : agents) leaders += agent->listener ? 1 : 0;
  EXPECT_EQ(leaders, 1);
}

TEST_F(EndpointRendezvous, HasTheTimeOfItsKind) {
  LaunchOptions dynamic = c10d("192.0.2.1");
  LaunchOptions by_rank = fixed(1);
  for (LaunchOptions* options : {&dynamic, &by_rank}) {
    options->rendezvous.read_timeout = seconds(1000);
    options->rendezvous.join_timeout = seconds(3000);
    options->rendezvous.static_timeout = seconds(2000);
  }
  EXPECT_GT(meet(dynamic).deadline.remaining(), seconds(900));
  EXPECT_LT(meet(dynamic).deadline.remaining(), seconds(1001));
  EXPECT_GT(meet(by_rank).deadline.remaining(), seconds(1900));
  dynamic.rendezvous.join_timeout = seconds(5);  // which holds from the start
  EXPECT_LT(meet(dynamic).deadline.remaining(), seconds(6));
}

TEST_F(EndpointRendezvous, NobodyThereIsToldAtTheDeadline) {
  const std::uint16_t port = meet(c10d()).port;  // free again
  const Error error = thrown_by(
      [&] { control::connect({"127.0.0.1"}, port, control::Secret::random(), Deadline::after(milliseconds(1))); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1"));
}

// ---- Slurm step

struct StepRendezvous : ::testing::Test {
  static Rendezvous meet(ddp::test::FakePmiServer& server, int task, Deadline deadline = patience()) {
    const base::UniqueFd pmi = server.take_client(task);
    const base::Environment environment{Variables{{"PMI_FD", std::to_string(pmi.get())},
                                                  {"PMI_JOBID", "77.0"},
                                                  {"SLURM_PROCID", std::to_string(task)},
                                                  {"SLURM_NODEID", std::to_string(10 + task)}}};
    RoleDecision role;
    role.task = task;
    return meet_in_step(role, environment, {"127.0.0." + std::to_string(1 + task)}, deadline);
  }
};

TEST_F(StepRendezvous, TaskZeroTellsTheOthers) {
  ddp::test::FakePmiServer server{{.world_size = 3}};
  std::vector<std::optional<Rendezvous>> tasks(3);
  std::vector<std::thread> threads;
  for (int task = 0; task < 3; ++task) {
    threads.emplace_back([&, task] { tasks[static_cast<std::size_t>(task)].emplace(meet(server, task)); });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tasks[0]->listener);
  EXPECT_EQ(tasks[0]->port, tasks[0]->listener->port());
  for (int task = 0; task < 3; ++task) {
    const Rendezvous& own = *tasks[static_cast<std::size_t>(task)];
    EXPECT_EQ(own.listener != nullptr, task == 0);
    EXPECT_THAT(own.addresses, ElementsAre("127.0.0.1"));
    EXPECT_EQ(own.port, tasks[0]->port);
    EXPECT_EQ(own.order, task);
  }
  EXPECT_TRUE(reaches(*tasks[2], *tasks[0]->listener));
}

TEST_F(StepRendezvous, ATaskThatDoesNotComeIsToldAtTheDeadline) {
  ddp::test::FakePmiServer server{{.world_size = 2}};
  const Error error = thrown_by([&] { meet(server, 0, Deadline::after(milliseconds(100))); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("the other agents of this Slurm step"), HasSubstr("without srun")));
}

TEST_F(StepRendezvous, APmiThatIsSilentOrTalksNonsenseIsAnError) {
  ddp::test::FakePmiServer silent{{.silent_command = "fullinit"}};
  ddp::test::FakePmiServer nonsense{{.raw = {{"fullinit", "nonsense"}}}};
  const auto late = error_of([&] { meet(silent, 0, Deadline::after(milliseconds(100))); });
  const auto wrong = error_of([&] { meet(nonsense, 0); });
  ASSERT_TRUE(late && wrong);
  for (const Error& error : {*late, *wrong}) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), AnyOf(HasSubstr("PMI-2 server"), HasSubstr("PMI server")));
  }
}

TEST_F(StepRendezvous, LeavesNoProcess) {
  ddp::test::FakePmiServer server{{.world_size = 2}};
  ASSERT_TRUE(error_of([&] { meet(server, 1, Deadline::after(milliseconds(1))); }));
  EXPECT_EQ(ddp::test::left_children(), "");
}

}  // namespace
}  // namespace ddp::launcher
