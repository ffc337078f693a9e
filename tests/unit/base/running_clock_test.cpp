// The clock of deadlines stands still while the process is stopped.
#include "base/running_clock.hpp"

#include <ddp/deadline.hpp>

namespace ddp::base {
namespace {

using std::chrono::steady_clock;

/// Stops a child in the middle of what it does for @p time. Its exit status: 0 if @p body says that all is right.
int status_of_stopped(milliseconds time, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, WUNTRACED);
  if (!WIFSTOPPED(status)) return status;
  std::this_thread::sleep_for(time);
  ::kill(child, SIGCONT);
  ::waitpid(child, &status, 0);
  return status;
}

constexpr milliseconds kStop{2000};

TEST(RunningClock, LeavesOutThatTheProcessWasStopped) {
  EXPECT_EQ(status_of_stopped(kStop,
                              [] {
                                const RunningClockGuard guard;
                                const RunningClockGuard another;
                                std::this_thread::sleep_for(milliseconds(50));
                                const auto steady = steady_clock::now();
                                const Deadline deadline = Deadline::after(milliseconds(1800));
                                ::raise(SIGSTOP);
                                const bool left = !deadline.expired();
                                return left && steady_clock::now() - steady >= kStop;
                              }),
            0);
}

TEST(RunningClock, IsTheSteadyClockWhereNobodyNeedsMore) {
  EXPECT_EQ(status_of_stopped(milliseconds(200),
                              [] {
                                { const RunningClockGuard over; }
                                std::this_thread::sleep_for(milliseconds(50));
                                const Deadline deadline = Deadline::after(milliseconds(100));
                                ::raise(SIGSTOP);
                                return deadline.expired();
                              }),
            0);
}

/// Who waits for long does not stop it: the thread says that the process runs.
TEST(RunningClock, RunsWhileThreadsSleep) {
  const RunningClockGuard guard;
  const auto steady = steady_clock::now();
  const auto running = RunningClock::now();
  std::this_thread::sleep_for(milliseconds(1200));
  const auto passed = RunningClock::now() - running;
  EXPECT_LE(passed, steady_clock::now() - steady);
  EXPECT_GE(passed, milliseconds(600)) << "this machine gave the thread no processor for long";
}

TEST(RunningClock, OfAForkedChildNeedsItsOwnGuard) {
  const RunningClockGuard guard;
  EXPECT_EQ(status_of_stopped(milliseconds(1500),
                              [] {
                                const Deadline deadline = Deadline::after(milliseconds(1000));
                                ::raise(SIGSTOP);
                                return deadline.expired();
                              }),
            0);
}

}  // namespace
}  // namespace ddp::base
