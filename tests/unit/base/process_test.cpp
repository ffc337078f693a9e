// Children that end in every way: how they ended is known, and none is left.
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <ddp/error.hpp>

#include "base/process.hpp"
#include "support/error_of.hpp"
#include "support/forbid.hpp"

namespace ddp::base {
namespace {

Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }
Deadline now() { return Deadline::after(milliseconds(0)); }

template <class Function>
ChildProcess child(Function&& function) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    function();
    ::_exit(0);
  }
  EXPECT_GT(pid, 0);
  return ChildProcess{pid};
}

ChildProcess sleeper() {
  return child([] {
    for (;;) ::pause();
  });
}

/// One that ignores SIGTERM by the time this returns.
ChildProcess stubborn() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ChildProcess process = child([&] {
    ::signal(SIGTERM, SIG_IGN);
    ::close(ends[1]);
    for (;;) ::pause();
  });
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
  return process;
}

bool is_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(ChildProcess, TellsTheExitCode) {
  ChildProcess process = child([] { ::_exit(7); });
  ASSERT_TRUE(process.wait(patience()));
  EXPECT_EQ(process.end(), (ProcessEnd{.code = 7, .by_signal = false}));
  EXPECT_EQ(process.end()->shell_status(), 7);
}

TEST(ChildProcess, TellsTheSignal) {
  ChildProcess process = child([] { ::raise(SIGUSR1); });
  ASSERT_TRUE(process.wait(patience()));
  EXPECT_EQ(process.end(), (ProcessEnd{.code = SIGUSR1, .by_signal = true}));
  EXPECT_EQ(process.end()->shell_status(), 128 + SIGUSR1);
}

TEST(ChildProcess, ARunningOneHasNoEnd) {
  ChildProcess process = sleeper();
  EXPECT_FALSE(process.end());
  EXPECT_FALSE(process.wait(Deadline::after(milliseconds(1))));
  EXPECT_FALSE(readable(process.pidfd()));
}

TEST(ChildProcess, PidfdIsReadableAtTheEnd) {
  ChildProcess process = sleeper();
  const int pidfd = process.pidfd();
  process.signal(SIGKILL);
  ASSERT_TRUE(process.wait(patience()));
  EXPECT_EQ(process.pidfd(), pidfd);
  EXPECT_TRUE(readable(pidfd));
}

TEST(ChildProcess, DestructionKillsAndReaps) {
  pid_t running = -1, ended = -1;
  {
    const ChildProcess process = stubborn();
    ChildProcess other = child([] {});
    running = process.pid();
    ended = other.pid();
    pollfd entry{.fd = other.pidfd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 60'000), 1);  // a zombie
    EXPECT_TRUE(is_child(running));
    EXPECT_TRUE(is_child(ended));
  }
  EXPECT_FALSE(is_child(running));
  EXPECT_FALSE(is_child(ended));
}

TEST(ChildProcess, TerminateIsEnoughForMost) {
  ChildProcess process = sleeper();
  EXPECT_TRUE(process.terminate(patience()));
  EXPECT_EQ(process.end(), (ProcessEnd{.code = SIGTERM, .by_signal = true}));
}

TEST(ChildProcess, TerminateKillsAtTheDeadline) {
  ChildProcess process = stubborn();
  EXPECT_TRUE(process.terminate(now()));
  EXPECT_EQ(process.end(), (ProcessEnd{.code = SIGKILL, .by_signal = true}));
}

TEST(ChildProcess, AStoppedOneCanBeKilled) {
  ChildProcess process = sleeper();
  process.signal(SIGSTOP);
  EXPECT_TRUE(process.kill());
  EXPECT_EQ(process.end()->code, SIGKILL);
}

TEST(ChildProcess, AStoppedOneActsOnTerminate) {
  ChildProcess process = sleeper();
  process.signal(SIGSTOP);
  ASSERT_TRUE(process.terminate(patience()));
  EXPECT_EQ(process.end(), (ProcessEnd{.code = SIGTERM, .by_signal = true}));
}

TEST(ChildProcess, MovingHandsItOver) {
  ChildProcess first = sleeper();
  const pid_t pid = first.pid();
  ChildProcess second{std::move(first)};
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
  EXPECT_EQ(second.pid(), pid);
  EXPECT_TRUE(is_child(pid));
}

TEST(ChildProcess, AssignmentEndsWhatWasThere) {
  ChildProcess process = sleeper();
  const pid_t before = process.pid();
  ChildProcess other = sleeper();
  const pid_t after = other.pid();
  process = std::move(other);
  EXPECT_EQ(process.pid(), after);
  EXPECT_FALSE(is_child(before));
  process = ChildProcess{};
  EXPECT_FALSE(process);
  EXPECT_FALSE(is_child(after));
}

TEST(ChildProcess, AnEmptyOneDoesNothing) {
  ChildProcess none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.end());
  EXPECT_TRUE(none.wait(now()));
  none.signal(SIGKILL);  // kill(-1, ...) would be everything
  EXPECT_TRUE(none.kill());
}

TEST(ChildProcess, AnEndThatWasReapedElsewhereIsUnknown) {
  ChildProcess process = child([] {});
  ASSERT_EQ(::waitpid(process.pid(), nullptr, 0), process.pid());
  EXPECT_TRUE(process.wait(patience()));
  EXPECT_EQ(process.end()->shell_status(), -1);
}

TEST(ChildProcess, IgnoredSigchldIsNoHindrance) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);  // the kernel reaps
  ChildProcess process = sleeper();
  EXPECT_TRUE(process.terminate(patience()));
  EXPECT_EQ(process.end()->shell_status(), -1);
  ::signal(SIGCHLD, before);
}

TEST(ChildProcess, ReleaseLeavesItToTheCaller) {
  ChildProcess process = child([] { ::_exit(3); });
  const pid_t pid = process.pid();
  const UniqueFd pidfd = process.release();
  EXPECT_FALSE(process);
  EXPECT_TRUE(pidfd);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(ChildProcess, WithoutAPidfdTheErrorSaysWhy) {
  ChildProcess process = child([] {});
  ASSERT_EQ(::waitpid(process.pid(), nullptr, 0), process.pid());
  const Error error = test::thrown_by([&] { process.pidfd(); });
  EXPECT_EQ(error.native(), "ESRCH (3)");
}

TEST(ChildProcess, AThreadWatchesWhereThereIsNoPidfd) {
  for (const unsigned refusal : {static_cast<unsigned>(EPERM), static_cast<unsigned>(ENOSYS)}) {
    const pid_t host = ::fork();  // which keeps the filter
    if (host == 0) {
      ChildProcess process = sleeper();
      test::forbid({SYS_pidfd_open}, refusal);
      const int watched = process.pidfd();
      if (readable(watched) || process.pidfd() != watched) ::_exit(1);
      process.signal(SIGTERM);
      pollfd entry{.fd = watched, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 60'000) != 1) ::_exit(2);
      if (process.end()->code != SIGTERM) ::_exit(3);  // the thread has left it to be reaped
      for (int i = 0; i < 20; ++i) sleeper().pidfd();  // whose threads find no reader at the end
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(host, &status, 0), host);
    EXPECT_EQ(status, 0);
  }
}

TEST(ChildProcess, WaitsWithoutAPidfd) {
  const pid_t host = ::fork();  // which must not disturb other tests
  if (host == 0) {
    ChildProcess process = sleeper();
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    if (process.wait(Deadline::after(milliseconds(1)))) ::_exit(1);
    process.signal(SIGTERM);
    ::_exit(process.wait(patience()) && process.end()->code == SIGTERM ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(host, &status, 0), host);
  EXPECT_EQ(status, 0);
}

}  // namespace

// Processes that run, are stopped or gone, told apart by what the kernel says.

namespace {

/// Does nothing.
class IdleProcess {
 public:
  IdleProcess() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  IdleProcess& operator=(IdleProcess&&) = delete;
  ~IdleProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ProcessNumber number() const { return {.pid = pid_, .space = own_process().space}; }
  void send(int signal) const { ::kill(pid_, signal); }
  /// Signals take effect a moment later.
  bool comes_to(ProcessLife life) const {
    for (int i = 0; i < 10'000; ++i) {
      if (life_of(number()) == life) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  const pid_t pid_;
};

TEST(ProcessLife, FollowsSignals) {
  const IdleProcess process;
  EXPECT_TRUE(process.comes_to(ProcessLife::runs));
  process.send(SIGSTOP);
  EXPECT_TRUE(process.comes_to(ProcessLife::stopped));
  process.send(SIGCONT);
  EXPECT_TRUE(process.comes_to(ProcessLife::runs));
  process.send(SIGKILL);
  EXPECT_TRUE(process.comes_to(ProcessLife::gone)) << "its parent has not waited for it";
}

TEST(ProcessLife, OneThatWasWaitedForIsGone) {
  ProcessNumber number;
  {
    const IdleProcess process;
    number = process.number();
  }
  EXPECT_EQ(life_of(number), ProcessLife::gone);
}

TEST(ProcessLife, OwnProcessRuns) {
  EXPECT_EQ(own_process().pid, ::getpid());
  EXPECT_EQ(life_of(own_process()), ProcessLife::runs);
}

TEST(ProcessLife, OfAnotherNamespaceNothingIsKnown) {
  ProcessNumber other = own_process();
  ++other.space;
  EXPECT_EQ(life_of(other), ProcessLife::unknown);
  EXPECT_EQ(life_of({.pid = other.pid, .space = 0}), ProcessLife::unknown);
}

}  // namespace

}  // namespace ddp::base
