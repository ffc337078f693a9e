// Processes that run, are stopped or gone, told apart by what the kernel says.
#include "base/process_life.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ddp::base {
namespace {

/// Does nothing.
class IdleProcess {
 public:
  IdleProcess() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  IdleProcess(const IdleProcess&) = delete;
  IdleProcess& operator=(const IdleProcess&) = delete;
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
