// The real ddp-step, and programs that behave worse.
#include "ddp_step_client.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "node_plan.hpp"
#include "topology/placement/affinity_mask.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::srun_plugin {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

const std::string kSecretLine = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

bool eventually(const std::function<bool()>& condition) {
  for (const Deadline limit = patience(); !condition(); ::usleep(5000)) {
    if (limit.expired()) return false;
  }
  return true;
}

template <class Function>
std::string error_of(Function&& function, ErrorCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

DdpStepClient start(const std::string& path, const std::vector<std::string>& arguments) {
  return DdpStepClient(path, arguments, {});
}

/// A store that is ready, and its port.
struct Store {
  DdpStepClient program;
  std::uint16_t port = 0;

  explicit Store(const std::vector<std::string>& arguments = {"store"}) : program(start(DDP_STEP_PROGRAM, arguments)) {
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

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
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

class StepProgramTest : public ::testing::Test {
 protected:
  StepProgramTest() {
    std::string name = (fs::temp_directory_path() / "ddp-step-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
  }
  ~StepProgramTest() override { fs::remove_all(folder_); }

  /// A program that runs @p lines in sh. It leaves its process id in the file "pid".
  std::string script(const std::string& lines) {
    const fs::path path = folder_ / "program";
    std::ofstream(path) << "#!/bin/sh\necho $$ >" << (folder_ / "pid.new").string() << "\nmv "
                        << (folder_ / "pid.new").string() << ' ' << (folder_ / "pid").string() << '\n'
                        << lines << '\n';
    ::chmod(path.c_str(), 0755);
    return path;
  }
  pid_t script_pid() {
    EXPECT_TRUE(eventually([&] { return fs::exists(folder_ / "pid"); }));
    return std::stoi(read_file(folder_ / "pid"));
  }
  static bool is_gone(pid_t process) { return ::kill(process, 0) != 0 && errno == ESRCH; }

  fs::path folder_;
};

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
      DdpStepClient store = start(DDP_STEP_PROGRAM, {"store"});
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
  const Store store({"store", "--port-range=" + std::to_string(first) + "-" + std::to_string(first + 50)});
  EXPECT_GE(store.port, first);
  EXPECT_LE(store.port, first + 50);
  EXPECT_NE(store.port, any.port);
}

TEST_F(StepProgramTest, AUsedUpRangeIsAnError) {
  const Store other;
  const std::string port = std::to_string(other.port);
  DdpStepClient store = start(DDP_STEP_PROGRAM, {"store", "--port-range=" + port + "-" + port});
  store.send(base::to_bytes(kSecretLine), patience());
  EXPECT_THAT(store.read_line(patience()), AllOf(StartsWith("error "), HasSubstr(port)));
  EXPECT_EQ(store.finish(patience()), 1);
}

TEST_F(StepProgramTest, WithoutASecretThereIsNoStore) {
  DdpStepClient store = start(DDP_STEP_PROGRAM, {"store"});
  store.close_input();
  EXPECT_THAT(error_of([&] { store.read_line(patience()); }, ErrorCode::peer_lost), HasSubstr("exit status 1"));
  DdpStepClient wrong = start(DDP_STEP_PROGRAM, {"store"});
  wrong.send(base::to_bytes("no secret\n"), patience());
  EXPECT_THAT(wrong.read_line(patience()), StartsWith("error "));
}

TEST_F(StepProgramTest, WrongUsageIsOne) {
  using Words = std::vector<std::string>;
  for (const Words& words : {Words{}, Words{"stores"}, Words{"store", "--port-range=5"},
                             Words{"store", "--port-range=-"}, Words{"store", "--port-range=1-70000"},
                             Words{"store", "5-6"}, Words{"plan", "x"}, Words{"store", "--port-range=1-2", "x"}}) {
    testing::internal::CaptureStderr();
    DdpStepClient program = start(DDP_STEP_PROGRAM, words);
    EXPECT_EQ(base::to_text(program.read_all(patience())), "");
    EXPECT_EQ(program.finish(patience()), 2) << ::testing::PrintToString(words);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), StartsWith("usage: ddp-step"));
  }
}

TEST_F(StepProgramTest, PlanAnswersAboutThisMachine) {
  DdpStepClient program = start(DDP_STEP_PROGRAM, {"plan"});
  const CpuSet own = topology::affinity_of(0);
  program.send(encode(PlanQuestion{.bind = BindPolicy::numa,
                                   .gpus = topology::GpuVisibility::all,
                                   .backend = "auto",
                                   .node_list = "n1",
                                   .node_name = "n1",
                                   .store_address = {},
                                   .store_port = 0,
                                   .resources = {encode(topology::RankResources{.cpus = own, .devices = {}})}}),
               patience());
  program.close_input();
  const NodePlan plan = decode_plan(program.read_all(patience()));
  EXPECT_EQ(program.finish(patience()), 0);
  ASSERT_EQ(plan.tasks.size(), 1U);
  EXPECT_TRUE(own.contains(plan.tasks[0].binding.value().cpus));
}

TEST_F(StepProgramTest, PlanSaysInOneLineWhatItDoesNotUnderstand) {
  testing::internal::CaptureStderr();
  DdpStepClient program = start(DDP_STEP_PROGRAM, {"plan"});
  program.send(base::to_bytes("nonsense"), patience());
  program.close_input();
  EXPECT_EQ(base::to_text(program.read_all(patience())), "");
  EXPECT_EQ(program.finish(patience()), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), MatchesRegex("ddp-step: [^\n]+\n"));
}

TEST_F(StepProgramTest, AWrongPathIsNamed) {
  const std::string path = folder_ / "nothing";
  EXPECT_THAT(error_of([&] { start(path, {}); }, ErrorCode::system),
              AllOf(HasSubstr(path), HasSubstr("ENOENT"), HasSubstr("helper=PATH")));
  const std::string no_program = folder_ / "text";
  std::ofstream(no_program) << "text";
  ::chmod(no_program.c_str(), 0600);
  EXPECT_THAT(error_of([&] { start(no_program, {}); }, ErrorCode::system),
              AllOf(HasSubstr(no_program), HasSubstr("EACCES")));
}

TEST_F(StepProgramTest, ASilentProgramIsKilledAtTheDeadline) {
  const std::string path = script("exec sleep 600");
  DdpStepClient program = start(path, {});
  const pid_t process = script_pid();
  EXPECT_THAT(error_of([&] { program.read_line(Deadline::after(milliseconds(200))); }, ErrorCode::timeout),
              AllOf(HasSubstr(path), HasSubstr("ETIMEDOUT")));
  EXPECT_TRUE(is_gone(process));
  EXPECT_EQ(program.finish(patience()), -1);
}

TEST_F(StepProgramTest, AProgramThatTalksWithoutEndIsStopped) {
  DdpStepClient lines = start(script("exec yes"), {});
  const pid_t first = script_pid();
  EXPECT_THAT(error_of([&] { lines.read_all(Deadline::after(milliseconds(200))); }, ErrorCode::timeout),
              HasSubstr("ETIMEDOUT"));
  EXPECT_TRUE(is_gone(first));
  fs::remove(folder_ / "pid");
  DdpStepClient no_line = start(script("tr '\\0' x </dev/zero"), {});
  EXPECT_THAT(error_of([&] { no_line.read_line(patience()); }, ErrorCode::peer_lost), HasSubstr("before it was ready"));
}

TEST_F(StepProgramTest, AProgramThatIgnoresTheEndOfInputIsKilled) {
  DdpStepClient program = start(script("exec sleep 600"), {});
  const pid_t process = script_pid();
  EXPECT_EQ(program.finish(Deadline::after(milliseconds(100))), 128 + SIGKILL);
  EXPECT_TRUE(is_gone(process));
}

TEST_F(StepProgramTest, ExitStatusesAreTold) {
  EXPECT_EQ(start(script("exit 7"), {}).finish(patience()), 7);
  DdpStepClient killed = start(script("kill -TERM $$"), {});
  EXPECT_THAT(error_of([&] { killed.read_line(patience()); }, ErrorCode::peer_lost), HasSubstr("exit status 143"));
}

TEST_F(StepProgramTest, NobodyGetsSigpipe) {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  DdpStepClient program = start(script("exit 3"), {});
  EXPECT_THAT(error_of([&] { program.send(Bytes(1 << 20, std::byte{'x'}), patience()); }, ErrorCode::peer_lost),
              AllOf(HasSubstr("EPIPE"), HasSubstr("exit status 3")));
  sigset_t pending;
  sigset_t mask;
  ::sigpending(&pending);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(::sigismember(&pending, SIGPIPE), 0);
  EXPECT_EQ(::sigismember(&mask, SIGPIPE), 0) << "the mask is not as it was";
  ::signal(SIGPIPE, before);
}

TEST_F(StepProgramTest, AProgramThatDoesNotReadHasADeadline) {
  DdpStepClient program = start(script("exec sleep 600"), {});
  EXPECT_THAT(error_of([&] { program.send(Bytes(1 << 20, std::byte{'x'}), Deadline::after(milliseconds(200))); },
                       ErrorCode::timeout),
              HasSubstr("ETIMEDOUT"));
  EXPECT_EQ(program.finish(Deadline::after(milliseconds(0))), 128 + SIGKILL);
}

TEST_F(StepProgramTest, GivenPathComesFirst) {
  EXPECT_EQ(find_ddp_step("/given/path"), "/given/path");
  // where it belongs, seen from this program as from the plugin, though it is not there
  const std::string own = std::filesystem::read_symlink("/proc/self/exe");
  const std::string found = find_ddp_step("");
  EXPECT_THAT(found, ::testing::EndsWith("libddp/ddp-step"));
  EXPECT_EQ(found.substr(0, 5), own.substr(0, 5)) << own;
  EXPECT_EQ(found.find(".."), std::string::npos);
}

TEST_F(StepProgramTest, InheritsOneDescriptorAndNoOther) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::vector<std::string> none;
  DdpStepClient program(script("echo told >&3; ls /proc/self/fd"), none, none, ends[1]);
  program.close_input();
  const Bytes listed = program.read_all(Deadline::after(std::chrono::seconds(60)));
  EXPECT_EQ(base::to_text(listed).substr(0, 8), "0\n1\n2\n3\n");
  char text[8] = {};
  EXPECT_EQ(::read(ends[0], text, sizeof text), 5);
  EXPECT_EQ(std::string(text), "told\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace ddp::srun_plugin
