// Real processes that rest, compute and end.
#include "diagnostics/hang/standstill_watch.hpp"

#include <poll.h>

#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "base/socket.hpp"
#include "diagnostics/hang/observe.hpp"

namespace ddp::diagnostics {
namespace {

/// A child that rests; after SIGUSR1 it computes.
base::ChildProcess resting_child() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    static volatile sig_atomic_t busy = 0;
    ::signal(SIGUSR1, [](int) { busy = 1; });
    while (busy == 0) ::usleep(100'000);
    for (;;) continue;
  }
  return base::ChildProcess{pid};
}

/// The next change, which comes in time.
std::optional<bool> next_change(StandstillWatch& watch, Deadline deadline = Deadline::after(60s)) {
  while (base::wait_for(watch.fd(), POLLIN, deadline)) {
    if (const auto change = watch.take()) return change;
  }
  return std::nullopt;
}

TEST(StandstillWatch, TellsOfRanksThatRestAndOfOneThatComputesAgain) {
  auto first = resting_child();
  auto second = resting_child();
  StandstillWatch watch{{first.pid(), second.pid()}, 600ms};
  EXPECT_EQ(next_change(watch), true);
  EXPECT_EQ(watch.take(), std::nullopt);
  second.signal(SIGUSR1);
  EXPECT_EQ(next_change(watch), false);
  second.signal(SIGKILL);
  EXPECT_EQ(next_change(watch), true) << "one that has ended does not move";
}

TEST(StandstillWatch, AStopByCtrlZIsNone) {
  auto child = resting_child();
  StandstillWatch watch{{child.pid()}, 300ms};
  watch.rest(true);
  EXPECT_EQ(next_change(watch, Deadline::after(1500ms)), std::nullopt);
  watch.rest(false);
  EXPECT_EQ(next_change(watch), true);
}

TEST(RankObserver, LooksAtRanksAndDoesNotWaitForever) {
  auto child = resting_child();
  RankIdentity identity;
  identity.rank = 5;
  RankObserver observer{{{.pid = child.pid(), .identity = identity}}, "n1", Deadline::after(60s)};
  EXPECT_FALSE(observer.take());
  ASSERT_TRUE(base::wait_for(observer.fd(), POLLIN, observer.deadline()));
  const auto facts = observer.take();
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->host, "n1");
  ASSERT_EQ(facts->ranks.size(), 1U);
  EXPECT_EQ(facts->ranks[0].rank, 5);
  EXPECT_EQ(facts->ranks[0].pid, child.pid());

  RankObserver late{{{.pid = child.pid(), .identity = identity}}, "n1", Deadline::after(0ms)};
  const auto nothing = late.take();
  ASSERT_TRUE(nothing);
  EXPECT_THAT(nothing->notes, testing::ElementsAre(testing::HasSubstr("/proc did not answer in time")));
}

}  // namespace
}  // namespace ddp::diagnostics
