// ssh's command line, and agents that come, do not come, and end. A shell script stands for ssh.
#include "launch/host_agents.hpp"
#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

TEST(SshCommandTest, AsksNothingAndShowsNoSecret) {
  LaunchOptions options;
  options.ssh_command = {"ssh", "-i", "my key"};
  options.ssh_port = 2222;
  const auto command = agent_start_command(options, "n1", "/opt/it's/ddprun");
  EXPECT_THAT(command,
              AllOf(Contains("BatchMode=yes"), Contains("ConnectTimeout=10"), Contains("-T"), Contains("2222")));
  EXPECT_EQ(std::vector<std::string>(command.begin(), command.begin() + 3), options.ssh_command);
  EXPECT_EQ(*(command.end() - 2), "n1");
  EXPECT_EQ(command.back(), "exec '/opt/it'\\''s/ddprun' --agent-from-stdin");
}

TEST(AgentCommandTest, IsATemplateOrGetsHostAndCommandAtTheEnd) {
  LaunchOptions options;
  const auto command = [&](std::vector<std::string> words) {
    options.agent_command = std::move(words);
    return agent_start_command(options, "n1", "/opt/a b/ddprun");
  };
  EXPECT_THAT(command({"rsh"}), ElementsAre("rsh", "n1", "/opt/a b/ddprun", "--agent-from-stdin"));
  EXPECT_THAT(command({"kubectl", "exec", "-i", "pod/{host}", "--"}),
              ElementsAre("kubectl", "exec", "-i", "pod/n1", "--", "/opt/a b/ddprun", "--agent-from-stdin"));
  EXPECT_THAT(command({"blaunch", "{host}", "{command}"}),
              ElementsAre("blaunch", "n1", "exec '/opt/a b/ddprun' --agent-from-stdin"));
  EXPECT_EQ(starter(options), "blaunch");
  const auto hint = [&](int status) { return hint_for_ssh_end(options, "n1", status, "", "/opt/ddprun"); };
  EXPECT_EQ(hint(1), "try 'echo works | blaunch n1 cat'");
  EXPECT_THAT(hint(127), HasSubstr("/opt/ddprun must be there"));
}

TEST(SshEndTest, TheHintFitsTheCause) {
  const auto hint = [](int status, const char* said) {
    return hint_for_ssh_end({}, "n1", status, said, "/opt/ddprun");
  };
  EXPECT_THAT(hint(255, "u@n1: Permission denied (publickey)"), HasSubstr("without a password"));
  EXPECT_THAT(hint(255, "Host key verification failed"), HasSubstr("known_hosts"));
  EXPECT_THAT(hint(255, "ssh: Could not resolve hostname n1: Name or service not known"), HasSubstr("check the name"));
  EXPECT_THAT(hint(255, "ssh: connect to host n1 port 22: No route to host"), HasSubstr("is it up"));
  EXPECT_THAT(hint(127, "sh: 1: exec: /opt/ddprun: not found"), HasSubstr("/opt/ddprun must be there"));
  EXPECT_THAT(hint(1, "ddprun: entering the folder"), IsEmpty());
}

TEST(ThisHostTest, IsKnownByItsNamesAndAddresses) {
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_TRUE(is_this_host(base::host_name()));
  std::string other_case = base::host_name();
  for (char& c : other_case) c = static_cast<char>(std::islower(c) != 0 ? std::toupper(c) : std::tolower(c));
  EXPECT_TRUE(is_this_host(other_case));
  EXPECT_TRUE(is_this_host("LocalHost"));
  EXPECT_FALSE(is_this_host("192.0.2.1"));  // RFC 5737: nobody's
  EXPECT_FALSE(is_this_host("n0.example"));
}

struct HostAgentsTest : testing::Test {
  HostAgentsTest() {
    ::signal(SIGPIPE, SIG_IGN);  // as in ddprun
    std::string name = testing::TempDir() + "host_agents_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    std::ofstream{folder_ / "ssh"} << "#!/bin/sh\n"
                                      "for last; do host=$word; word=$last; done\n"
                                      "cd " +
                                          folder_.string() +
                                          " || exit\n"
                                          "touch started.$host\n"
                                          "case $host in\n"
                                          "  bad*) echo one >&2; echo 'Permission denied (x).' >&2; exit 255 ;;\n"
                                          "  end*) while [ ! -e leave ]; do sleep 0.02; done; exit 9 ;;\n"
                                          "  *) cat >got.$host ;;\n"
                                          "esac\n";
    ::chmod((folder_ / "ssh").c_str(), 0755);
    options.ssh_command = {(folder_ / "ssh").string()};
  }
  ~HostAgentsTest() override {
    agents.reset();
    std::filesystem::remove_all(folder_);
  }

  void start(const std::vector<std::string>& names, HostAgentLimits limits = {}) {
    for (const std::string& name : names) options.hosts.push_back({.name = name, .ranks = 2});
    const AgentSettings common{
        .point = "secret-point", .directory = "/", .environment = {{"BIG", std::string(200'000, 'x')}}};
    agents.emplace(loop, options, names.size(), "/opt/ddprun", base::Environment::process(), common,
                   HostAgents::Events{
                       .missing =
                           [this](std::size_t count, const std::string& why) {
                             num_missing += count;
                             missing.push_back(why);
                             return goes_on;
                           },
                       .left = [this](std::int64_t node,
                                      const std::string& why) { left.push_back(std::to_string(node) + ": " + why); }},
                   limits);
  }
  template <class Condition>
  bool eventually(const Condition& condition) {
    const Deadline deadline = Deadline::after(60s);
    while (!condition() && !deadline.expired()) {
      loop.run_once(Deadline::after(20ms));
      agents->time_passed();
    }
    return condition();
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  std::uintmax_t size(const std::string& name) const {
    return exists(name) ? std::filesystem::file_size(folder_ / name) : 0;
  }

  LaunchOptions options;
  stream::EventLoop loop;
  std::optional<HostAgents> agents;
  std::vector<std::string> missing;
  std::size_t num_missing = 0;
  std::vector<std::string> left;
  bool goes_on = false;
  std::filesystem::path folder_;
};

TEST_F(HostAgentsTest, SettingsGoToStandardInputWhichStaysOpenUntilTheAgentHasJoined) {
  start({"a"});
  EXPECT_TRUE(eventually([&] { return size("got.a") > 200'000; }));
  EXPECT_FALSE(agents->ended());
  agents->joined(0);
  EXPECT_TRUE(eventually([&] { return agents->ended(); }));
}

TEST_F(HostAgentsTest, AHostWithoutAnAgentIsMissedWithSshsLastWords) {
  start({"a", "bad1"});
  EXPECT_TRUE(eventually([&] { return agents->ended(); }));  // the other is not waited for
  EXPECT_THAT(missing, ElementsAre(AllOf(HasSubstr("starting ddprun on bad1"), HasSubstr("exit code 255"),
                                         HasSubstr(": Permission denied (x)"), HasSubstr("without a password"))));
}

TEST_F(HostAgentsTest, NoMoreThanTheBoundAreStartedAtATime) {
  start({"a", "b", "c", "d"}, {.at_once = 2});
  EXPECT_TRUE(eventually([&] { return exists("started.a") && exists("started.b"); }));
  loop.run_once(Deadline::after(100ms));
  EXPECT_FALSE(exists("started.c"));
  agents->joined(1);
  EXPECT_TRUE(eventually([&] { return exists("started.c"); }));
  EXPECT_FALSE(exists("started.d"));
}

TEST_F(HostAgentsTest, WhereTheJobCanDoWithoutAHostTheOthersGoOn) {
  goes_on = true;
  start({"bad1", "bad2", "a"}, {.at_once = 1});
  EXPECT_TRUE(eventually([&] { return exists("started.a"); }));
  EXPECT_TRUE(eventually([&] { return num_missing == 2; }));
  EXPECT_FALSE(agents->ended());
}

TEST_F(HostAgentsTest, HostsThatFailTogetherAreNamedTogether) {
  start({"bad1", "a", "bad2", "bad3"}, {.gather = 30s});
  EXPECT_TRUE(eventually([&] { return exists("started.a"); }));
  agents->joined(1);
  EXPECT_TRUE(eventually([&] { return !missing.empty(); }));
  EXPECT_THAT(missing, ElementsAre(HasSubstr("starting ddprun on bad1, bad2, bad3: ")));
  EXPECT_EQ(num_missing, 3U);
}

TEST_F(HostAgentsTest, AFailureIsReportedThoughOthersAreStillStarting) {
  start({"bad1", "a"}, {.gather = 50ms});
  EXPECT_TRUE(eventually([&] { return !missing.empty(); }));
  EXPECT_THAT(missing, ElementsAre(HasSubstr("starting ddprun on bad1: ")));
}

TEST_F(HostAgentsTest, AnAgentThatDoesNotJoinInTimeIsMissed) {
  start({"a"}, {.start = 100ms});
  EXPECT_TRUE(eventually([&] { return agents->ended(); }));
  EXPECT_THAT(missing, ElementsAre(AllOf(HasSubstr("on a"), HasSubstr("did not join within 1 s"))));
}

TEST_F(HostAgentsTest, TheEndOfAnSshIsTold) {
  start({"end1"}, {.patience = 10ms});
  EXPECT_TRUE(eventually([&] { return exists("started.end1"); }));
  agents->joined(0);
  std::ofstream{folder_ / "leave"};
  EXPECT_TRUE(eventually([&] { return !left.empty(); }));
  EXPECT_THAT(left, ElementsAre(AllOf(HasSubstr("0: "), HasSubstr("ended with exit code 9"))));
  EXPECT_THAT(missing, IsEmpty());
}

}  // namespace

// Hosts that failed in the same way are named together.

namespace {

TEST(HostFailuresTest, OneLineForAll) {
  const HostFailure one{
      .host = "n1", .cause = "ssh ended with exit code 255: connect to host n1: refused", .hint = "is n1 up?"};
  const HostFailure two{
      .host = "n22", .cause = "ssh ended with exit code 255: connect to host n22: refused", .hint = "is n22 up?"};
  const HostFailure other{.host = "n3", .cause = "it did not join within 60 s", .hint = ""};
  EXPECT_EQ(describe(std::vector{one}),
            "starting ddprun on n1: ssh ended with exit code 255: connect to host n1: refused; is n1 up?");
  EXPECT_EQ(describe(std::vector{one, other, two}),
            "starting ddprun on n1, n22: ssh ended with exit code 255: connect to host n1: refused; is n1 up?; "
            "on n3: it did not join within 60 s");
}

TEST(HostFailuresTest, ManyNamesAreCounted) {
  std::vector<HostFailure> many;
  for (int i = 100; i < 130; ++i) many.push_back({.host = "n" + std::to_string(i), .cause = "down", .hint = ""});
  EXPECT_THAT(describe(many), testing::EndsWith(", n115 and 14 more: down"));
}

}  // namespace

}  // namespace ddp::launcher
