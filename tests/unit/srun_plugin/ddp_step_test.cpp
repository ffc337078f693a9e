// The real ddp-step: its store, its plans, how it ends, and what it has of the process that started it.
#include "ddp_step_fixture.hpp"

#include <sys/socket.h>

#include <charconv>

#include <ddp/version.hpp>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "support/checkout.hpp"
#include "task_side/node_questions.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::srun_plugin::test {
namespace {

const std::string kSecretLine = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

/// A store that is ready, and its port.
struct Store {
  DdpStepClient program;
  std::uint16_t port = 0;

  explicit Store(const std::vector<std::string>& arguments = {"coordinator"})
      : program(start(ddp::test::built_program("ddp-step"), arguments)) {
    program.send(base::to_bytes(kSecretLine), patience());
    const std::string line = program.read_line(patience());
    const std::string ready = "ddp-step 1 port ";
    EXPECT_THAT(line, StartsWith(ready));
    if (line.starts_with(ready)) std::from_chars(line.data() + ready.size(), line.data() + line.size(), port);
    EXPECT_NE(port, 0);
  }
};

bool listens(std::uint16_t port) {
  try {
    base::connect_tcp("127.0.0.1", port, patience());
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Children of this process that are not zombies and run the program @p name.
std::vector<pid_t> children(const std::string& name) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string number = entry.path().filename();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = read_file(entry.path() / "stat");
    const auto open = stat.find('(');
    const auto close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 > stat.size()) continue;
    if (stat[close + 2] == 'Z' || stat.substr(open + 1, close - open - 1) != name) continue;
    if (std::stoi(stat.substr(close + 4)) == ::getpid()) found.push_back(std::stoi(number));
  }
  return found;
}

/// What the descriptors of a process are.
std::map<int, std::string> descriptors(pid_t process) {
  std::map<int, std::string> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
    all.emplace(std::stoi(entry.path().filename()), fs::read_symlink(entry.path(), error).string());
  }
  return all;
}

TEST_F(StepProgramTest, StoreSaysWhereItListens) {
  Store store;
  EXPECT_TRUE(listens(store.port));
  EXPECT_EQ(store.program.finish(patience()), 0);
  EXPECT_FALSE(listens(store.port));
}

TEST_F(StepProgramTest, EndsWhenItsInputCloses) {
  Store store;
  store.program.close_input();
  EXPECT_TRUE(eventually([&] { return !listens(store.port); }));
  EXPECT_EQ(store.program.finish(patience()), 0);
  EXPECT_EQ(store.program.finish(patience()), -1) << "it has been waited for";
}

TEST_F(StepProgramTest, EndsWhenItsParentIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const Store store;
    [[maybe_unused]] const ssize_t written = ::write(ends[1], &store.port, sizeof store.port);
    ::pause();
    ::_exit(0);
  }
  std::uint16_t port = 0;
  ASSERT_EQ(::read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  EXPECT_TRUE(listens(port));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(eventually([&] { return !listens(port); }));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(StepProgramTest, HasNothingOfItsParents) {
  const fs::path own = folder_ / "own";
  const base::UniqueFd left_open{::open(own.c_str(), O_CREAT | O_RDWR, 0600)};  // no O_CLOEXEC, as srun's sockets
  ASSERT_TRUE(left_open);
  ::setenv("DDP_STEP_TEST_LEAK", "1", 1);
  const Store store;
  ::unsetenv("DDP_STEP_TEST_LEAK");
  // Those of other tests may still be ending.
  ASSERT_TRUE(eventually([] { return children("ddp-step").size() == 1; }));
  const pid_t child = children("ddp-step").front();
  // It gives up its output just after it was read.
  EXPECT_TRUE(eventually([&] { return descriptors(child)[1] == "/dev/null"; }));
  EXPECT_EQ(descriptors(child)[2], descriptors(::getpid())[2]) << "users would not see whom the store refuses";
  int files = 0;
  for (const auto& [number, target] : descriptors(child)) {
    if (number == STDERR_FILENO) continue;
    const bool expected = target == "/dev/null" || target.starts_with("socket:") || target.starts_with("anon_inode:") ||
                          target.starts_with("pipe:");
    EXPECT_TRUE(expected) << number << " is " << target;
    if (number > STDERR_FILENO) ++files;
  }
  EXPECT_GT(files, 0) << "the listening socket";
  const auto sockets = [](pid_t process) {
    std::set<std::string> names;
    for (const auto& [number, target] : descriptors(process)) {
      if (target.starts_with("socket:")) names.insert(target);
    }
    return names;
  };
  for (const std::string& name : sockets(::getpid())) EXPECT_EQ(sockets(child).count(name), 0U) << name;
  EXPECT_EQ(::getsid(child), child) << "it would get the terminal's signals";
  EXPECT_THAT(read_file("/proc/" + std::to_string(child) + "/environ"), Not(HasSubstr("DDP_STEP_TEST_LEAK")));
}

TEST_F(StepProgramTest, StartsWithoutStandardDescriptors) {
  const pid_t host = ::fork();
  if (host == 0) {
    for (const int fd : {0, 1, 2}) ::close(fd);
    try {
      DdpStepClient store = start(ddp::test::built_program("ddp-step"), {"coordinator"});
      store.send(base::to_bytes(kSecretLine), patience());
      const bool ready = store.read_line(patience()).starts_with("ddp-step 1 port ");
      ::_exit(ready && store.finish(patience()) == 0 ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = -1;
  ASSERT_EQ(::waitpid(host, &status, 0), host);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(StepProgramTest, PortIsOneOfTheRange) {
  const Store any;  // a port that was free
  const std::uint16_t first = any.port < 65000 ? any.port : any.port - 100;
  const Store store({"coordinator", "--port-range=" + std::to_string(first) + "-" + std::to_string(first + 50)});
  EXPECT_GE(store.port, first);
  EXPECT_LE(store.port, first + 50);
  EXPECT_NE(store.port, any.port);
}

TEST_F(StepProgramTest, AUsedUpRangeIsAnError) {
  const Store other;
  const std::string port = std::to_string(other.port);
  DdpStepClient store =
      start(ddp::test::built_program("ddp-step"), {"coordinator", "--port-range=" + port + "-" + port});
  store.send(base::to_bytes(kSecretLine), patience());
  EXPECT_THAT(store.read_line(patience()), AllOf(StartsWith("error "), HasSubstr(port)));
  EXPECT_EQ(store.finish(patience()), 1);
}

TEST_F(StepProgramTest, WithoutASecretThereIsNoStore) {
  DdpStepClient store = start(ddp::test::built_program("ddp-step"), {"coordinator"});
  store.close_input();
  EXPECT_THAT(error_of([&] { store.read_line(patience()); }, ErrorCode::peer_lost), HasSubstr("exit status 1"));
  DdpStepClient wrong = start(ddp::test::built_program("ddp-step"), {"coordinator"});
  wrong.send(base::to_bytes("no secret\n"), patience());
  EXPECT_THAT(wrong.read_line(patience()), StartsWith("error "));
}

TEST_F(StepProgramTest, WrongUsageIsOne) {
  using Words = std::vector<std::string>;
  for (const Words& words :
       {Words{}, Words{"store"}, Words{"coordinator", "--port-range=5"}, Words{"coordinator", "--port-range=-"},
        Words{"coordinator", "--port-range=1-70000"}, Words{"coordinator", "5-6"}, Words{"agent", "x"},
        Words{"coordinator", "--port-range=1-2", "x"}}) {
    testing::internal::CaptureStderr();
    DdpStepClient program = start(ddp::test::built_program("ddp-step"), words);
    EXPECT_EQ(base::to_text(program.read_all(patience())), "");
    EXPECT_EQ(program.finish(patience()), 2) << ::testing::PrintToString(words);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), StartsWith("usage: ddp-step"));
  }
}

Bytes resources_of_this_machine() {
  return framed(base::encode(NodeResources{{encode(topology::RankResources{.cpus = topology::affinity_of(0)})}}));
}

TEST_F(StepProgramTest, AgentAnswersAboutThisMachine) {
  DdpStepClient program = start(ddp::test::built_program("ddp-step"), {"agent"});
  NodeQuestion question{.ranks = {0}};
  question.node_list = question.node_name = "n1";
  program.send(framed(base::encode(question)), patience());
  program.send(resources_of_this_machine(), patience());
  program.close_input();
  const auto answer = base::decode<NodeAnswer>(program.read_all(patience()));
  EXPECT_EQ(program.finish(patience()), 0);
  EXPECT_EQ(answer.version, DDP_VERSION_STRING);
  EXPECT_EQ(answer.flaw, "");
  EXPECT_EQ(answer.meeting.store_port, 0);
  ASSERT_EQ(answer.tasks.size(), 1U);
  EXPECT_TRUE(topology::affinity_of(0).contains(CpuSet::parse(answer.tasks[0].cpus)));
}

TEST_F(StepProgramTest, AgentSaysInOneLineWhatItDoesNotUnderstand) {
  testing::internal::CaptureStderr();
  DdpStepClient program = start(ddp::test::built_program("ddp-step"), {"agent"});
  program.send(framed(base::to_bytes("nonsense")), patience());
  program.close_input();
  EXPECT_EQ(base::to_text(program.read_all(patience())), "");
  EXPECT_EQ(program.finish(patience()), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), MatchesRegex("ddp-step: [^\n]+\n"));
}

/// With the agent that it leaves behind, which has the folder in its environment.
class AgentTest : public StepProgramTest {
 protected:
  NodeAnswer ask(std::vector<std::string> environment = {}) {
    NodeQuestion question{.step = "7.0", .srun_address = "127.0.0.1", .port = beside_.port, .ranks = {0}};
    question.node_list = question.node_name = "n1";
    question.secret = std::string(kSecretLine).substr(0, 64);
    environment.push_back("DDP_TEST_FOLDER=" + folder_.string());
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    channel_.reset(ends[0]);
    const base::UniqueFd inherited{ends[1]};
    question.has_channel = true;
    DdpStepClient program(ddp::test::built_program("ddp-step"), std::vector<std::string>{"agent"}, environment,
                          inherited.get());
    program.send(framed(base::encode(question)), patience());
    program.send(resources_of_this_machine(), patience());
    program.close_input();
    auto answer = base::decode<NodeAnswer>(program.read_all(patience()));
    EXPECT_EQ(program.finish(patience()), 0);
    return answer;
  }
  bool stays() const {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      if (read_file(entry.path() / "environ").find(folder_.string()) != std::string::npos &&
          read_file(entry.path() / "cmdline").find("agent") != std::string::npos)
        return true;
    }
    return false;
  }

  Store beside_;
  base::UniqueFd channel_;
};

TEST_F(AgentTest, FindsTheStoreBesideSrunAndStaysUntilItsTasksHaveEnded) {
  const NodeAnswer answer = ask();
  EXPECT_EQ(answer.meeting.flaw, "");
  EXPECT_EQ(answer.meeting.store_address, "127.0.0.1");
  EXPECT_TRUE(listens(answer.meeting.store_port));
  EXPECT_TRUE(stays());
  channel_.reset();
  EXPECT_TRUE(eventually([&] { return !stays(); }));
}

TEST_F(AgentTest, EndsWithSrun) {
  ask();
  beside_.program.close_input();
  EXPECT_TRUE(eventually([&] { return !stays(); }));
}

#ifndef DDP_SANITIZED  // which must come before the preloaded library
TEST_F(AgentTest, AFolderThatDoesNotAnswerDoesNotKeepIt) {
  const std::string dead = folder_.string();
  // The loader takes a blank in LD_PRELOAD for a border, and the checkout's path may have one.
  std::filesystem::create_symlink(ddp::test::built_file("lib/libdead_folder.so"), folder_ / "dead_folder.so");
  ask({"TMPDIR=" + dead, "DEAD_FOLDER=" + dead, "LD_PRELOAD=" + dead + "/dead_folder.so"});
  channel_.reset();
  EXPECT_TRUE(eventually([&] { return !stays(); })) << "Slurm would drain the node: kill task failed";
}
#endif

}  // namespace
}  // namespace ddp::srun_plugin::test
