// What a worker finds when its program begins, and what is told when it cannot begin.
#include "workers/spawn.hpp"

#include <poll.h>
#include <sys/syscall.h>

#include "base/process.hpp"
#include "outcome/exit_error.hpp"
#include "support/error_of.hpp"
#include "support/left_children.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

Deadline spawn_patience() { return Deadline::after(std::chrono::seconds(60)); }

struct SpawnPipe {
  SpawnPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  std::string all() {
    write.reset();
    std::string text;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(read.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(size));
    return text;
  }
  base::UniqueFd read, write;
};

struct Result {
  std::string out, err;
  int status;
};

struct SpawnTest : ::testing::Test {
  SpawnTest() {
    std::string name = (fs::temp_directory_path() / "spawn-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
  }
  ~SpawnTest() override {
    EXPECT_EQ(ddp::test::left_children(), "");
    fs::remove_all(folder_);
  }

  static SpawnRequest request(std::vector<std::string> command) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const std::string path = command.front();
    return {.rank = 5,
            .path = path,
            .arguments = std::move(command),
            .environment = {"PATH=/usr/bin:/bin"},
            .descriptor_limit = limit,
            .ignore_hangup = false};
  }
  static SpawnRequest shell(const std::string& script) { return request({"/bin/sh", "-c", script}); }

  static base::ChildProcess spawn(SpawnRequest request) {
    return base::ChildProcess{start_worker(std::move(request)).confirm(spawn_patience()).pid};
  }
  static Result run(SpawnRequest request) {
    SpawnPipe out, err;
    request.standard_output = out.write.get();
    request.standard_error = err.write.get();
    base::ChildProcess process = spawn(std::move(request));
    Result result{.out = out.all(), .err = err.all(), .status = -1};
    EXPECT_TRUE(process.wait(spawn_patience()));
    result.status = process.end()->shell_status();
    return result;
  }
  /// The error of starting it; its code and exit status are checked.
  static std::string refusal(SpawnRequest request) {
    try {
      start_worker(std::move(request)).confirm(spawn_patience());
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), kExitNotExecutable);
      return error.what();
    }
    return "no ExitError";
  }
  static std::string system_error(SpawnRequest request) {
    try {
      start_worker(std::move(request)).confirm(spawn_patience());
    } catch (const ExitError& error) {
      ADD_FAILURE() << "the program is not to blame: " << error.what();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::system);
      return error.what();
    }
    return "no Error";
  }

  std::string file(const std::string& name, const std::string& text, mode_t mode) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  fs::path folder_;
};

/// A line of /proc/PID/status, which cat(1) has printed.
std::string field(const std::string& status, const std::string& name) {
  const auto begin = status.find("\n" + name + ":");
  if (begin == std::string::npos) return {};
  const auto value = status.find_first_not_of(" \t", begin + name.size() + 2);
  return status.substr(value, status.find('\n', value) - value);
}

SpawnRequest with_binding(SpawnRequest request, Binding binding) {
  request.binding = std::move(binding);
  return request;
}

// ---- what it finds

TEST_F(SpawnTest, StandardInputIsDdprunsOrNothing) {
  SpawnRequest nothing = shell("readlink /proc/self/fd/0");
  nothing.standard_input = -1;
  EXPECT_EQ(run(std::move(nothing)).out, "/dev/null\n");
  EXPECT_EQ(run(shell("readlink /proc/self/fd/0")).out, fs::read_symlink("/proc/self/fd/0").string() + "\n");
}

TEST_F(SpawnTest, ArgumentsEnvironmentAndStreamsAreThoseOfTheRequest) {
  SpawnRequest worker = request({"/bin/sh", "-c", "echo \"$0|$1\"; env; echo e >&2; exit 4", "a b", ""});
  worker.environment = {"PATH=/usr/bin:/bin", "X=y z"};
  const Result result = run(worker);
  EXPECT_THAT(result.out, AllOf(HasSubstr("a b|\n"), HasSubstr("X=y z\n")));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("HOME=")));
  EXPECT_EQ(result.err, "e\n");
  EXPECT_EQ(result.status, 4);
}

TEST_F(SpawnTest, LeadsASessionAndAProcessGroup) {
  const SpawnPipe hold;
  const base::ChildProcess worker = spawn(request({"/bin/sleep", "1000"}));
  EXPECT_EQ(::getsid(worker.pid()), worker.pid());
  EXPECT_EQ(::getpgid(worker.pid()), worker.pid());
}

TEST_F(SpawnTest, HasNoOtherDescriptors) {
  const base::UniqueFd open{::open("/dev/null", O_RDONLY)};  // no O_CLOEXEC
  const base::UniqueFd high{::fcntl(open.get(), F_DUPFD, 500)};
  ASSERT_TRUE(high);
  EXPECT_EQ(run(request({"/bin/ls", "/proc/self/fd"})).out, "0\n1\n2\n3\n") << "3 is the folder itself";
}

TEST_F(SpawnTest, HasTheDescriptorLimitOfTheRequest) {
  SpawnRequest worker = shell("ulimit -n; ulimit -Hn");
  worker.descriptor_limit = {.rlim_cur = 77, .rlim_max = 99};
  EXPECT_EQ(run(worker).out, "77\n99\n");
}

TEST_F(SpawnTest, HasDefaultSignalsAndAnEmptyMask) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto pipe_before = ::signal(SIGPIPE, SIG_IGN);
  const auto hangup_before = ::signal(SIGHUP, SIG_IGN);
  SpawnRequest worker = request({"/bin/cat", "/proc/self/status"});
  const std::string plain = run(worker).out;
  worker.ignore_hangup = true;
  const std::string nohup = run(worker).out;
  ::signal(SIGHUP, hangup_before);
  ::signal(SIGPIPE, pipe_before);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(field(plain, "SigBlk"), "0000000000000000");
  EXPECT_EQ(field(plain, "SigIgn"), "0000000000000000");
  EXPECT_EQ(field(nohup, "SigBlk"), "0000000000000000");
  EXPECT_EQ(field(nohup, "SigIgn"), "0000000000000001") << "SIGHUP alone";
}

TEST_F(SpawnTest, IsBoundBeforeItBegins) {
  const CpuSet one{{topology::affinity_of(0).first()}};
  EXPECT_EQ(
      field(run(with_binding(request({"/bin/cat", "/proc/self/status"}), {.cpus = one})).out, "Cpus_allowed_list"),
      one.to_string());
}

TEST_F(SpawnTest, ANarrowedMaskIsAWarning) {
  CpuSet cpus{{topology::affinity_of(0).first()}};
  cpus.insert(CpuSet::kLargest);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(with_binding(shell("exit 3"), {.cpus = cpus})).status, 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: rank 5"), HasSubstr(cpus.to_string())));
}

TEST_F(SpawnTest, RefusedMemoryIsAWarning) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(with_binding(shell("exit 3"), {.cpus = topology::affinity_of(0), .preferred_memory = 1000})).status, 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: rank 5"), HasSubstr("NUMA node 1000")));
}

TEST_F(SpawnTest, IsKilledWhenItsParentDies) {
  SpawnPipe told, go;
  const pid_t host = ::fork();
  if (host == 0) {
    const pid_t worker = start_worker(request({"/bin/sleep", "1000"})).confirm(spawn_patience()).pid;
    [[maybe_unused]] const ssize_t written = ::write(told.write.get(), &worker, sizeof worker);
    ::pause();
  }
  base::ChildProcess parent{host};
  pid_t worker = 0;
  ASSERT_EQ(::read(told.read.get(), &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  const base::UniqueFd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, worker, 0U))};
  ASSERT_TRUE(pidfd);
  parent.kill();
  pollfd entry{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1) << "the worker lives on";
}

TEST_F(SpawnTest, ADeletedWorkingDirectoryDoesNoHarm) {
  const fs::path before = fs::current_path();
  fs::create_directory(folder_ / "gone");
  fs::current_path(folder_ / "gone");
  fs::remove(folder_ / "gone");
  const Result absolute = run(shell("exit 3"));
  const std::string relative = refusal(request({"./program"}));
  fs::current_path(before);
  EXPECT_EQ(absolute.status, 3);
  EXPECT_THAT(relative, HasSubstr("ENOENT"));
}

// ---- what cannot begin

TEST_F(SpawnTest, AProgramThatCannotBeExecutedIsNamedWithTheReason) {
  const std::string missing = file("missing_interpreter", "#!/nowhere/sh\n", 0755);
  EXPECT_THAT(refusal(request({missing})), AllOf(HasSubstr("starting rank 5 ('" + missing + "')"),
                                                 HasSubstr("ENOENT (2)"), HasSubstr("interpreter")));
  EXPECT_THAT(refusal(request({file("text", "text", 0755)})), AllOf(HasSubstr("ENOEXEC (8)"), HasSubstr("'#!' line")));
  EXPECT_THAT(refusal(request({file("not_executable", "#!/bin/sh\n", 0644)})), HasSubstr("EACCES (13)"));
  EXPECT_THAT(refusal(request({folder_})), HasSubstr("EACCES (13)"));
  EXPECT_THAT(refusal(request({file("plain", "", 0644) + "/below"})), HasSubstr("ENOTDIR (20)"));
  EXPECT_THAT(refusal(request({"/bin/true", std::string(std::size_t{4} << 20U, 'x')})),
              AllOf(HasSubstr("E2BIG (7)"), HasSubstr("too long")));
  fs::create_symlink(folder_ / "loop", folder_ / "loop");
  EXPECT_THAT(refusal(request({folder_ / "loop"})), HasSubstr("ELOOP (40)"));
}

TEST_F(SpawnTest, AFailureBeforeTheProgramIsNotBlamedOnIt) {
  SpawnRequest no_stream = shell("");
  no_stream.standard_output = 1'000'000;
  EXPECT_THAT(system_error(no_stream), HasSubstr("EBADF (9)"));
  SpawnRequest no_limit = shell("");
  no_limit.descriptor_limit = {.rlim_cur = 2, .rlim_max = 1};
  EXPECT_THAT(system_error(no_limit), AllOf(HasSubstr("EINVAL (22)"), HasSubstr("ulimit -n")));
  EXPECT_THAT(system_error(with_binding(shell(""), {.cpus = CpuSet{{CpuSet::kLargest}}})),
              AllOf(HasSubstr("EINVAL (22)"), HasSubstr("--bind none")));
}

// ---- until it has begun

TEST_F(SpawnTest, OneThatIsNotConfirmedIsKilled) {
  { const StartingWorker dropped = start_worker(request({"/bin/sleep", "1000"})); }
  EXPECT_EQ(ddp::test::left_children(), "");
}

TEST_F(SpawnTest, AProgramThatDoesNotBeginHasALimit) {
  SpawnPipe report;
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  StartingWorker worker{request({"/slow/program"}), base::ChildProcess{pid}, std::move(report.read)};
  const Error error = ddp::test::thrown_by([&] { worker.confirm(Deadline::after(std::chrono::milliseconds(1))); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 5"), HasSubstr("/slow/program"), HasSubstr("ETIMEDOUT")));
}

}  // namespace
}  // namespace ddp::launcher
