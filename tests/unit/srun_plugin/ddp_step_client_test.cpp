// Which program the client of ddp-step starts, and that none holds it up, however silent, endless or deaf it is.
#include "ddp_step_fixture.hpp"

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin::test {
namespace {

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
}  // namespace ddp::srun_plugin::test
