// What a rank that waits does between two polls, by where the others are: this program counts how often it yields.
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>

#include <gtest/gtest.h>

#include "collectives/processor_share.hpp"
#include "unit/collectives/engine/inline_backend.hpp"

namespace {

thread_local int yields = 0;

}  // namespace

/// In the place of the C library's.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(::syscall(SYS_sched_yield));
}

namespace ddp {
namespace {

// So few that no wait looks at the clock a second time: how busy the machine is does not matter.
constexpr int kPolls = 6;

/// How often one of two ranks on @p nodes yields while it waits for kPolls polls.
int yields_of_a_wait(std::vector<int> nodes) {
  auto members = ddp::test::members_of(2);
  members.nodes = std::move(nodes);
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"test", std::make_unique<ddp::test::InlineBackend>(kPolls)});
  ProcessGroup group{std::make_shared<collectives::GroupEngine>(
      std::move(members), std::move(backends), collectives::ConnectOptions{}, std::chrono::seconds(60))};
  const Work work = group.barrier();
  yields = 0;
  work.wait();
  return yields;
}

/// In one of many tries, since the progress thread may be the one that polls.
bool once(const std::function<bool()>& holds) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    if (holds()) return true;
  }
  return false;
}

TEST(Waiting, ARankSpinsForAnotherOnItsNodeIfEachHasAProcessor) {
  if (!collectives::ProcessorShare::read().enough_for(2)) GTEST_SKIP() << "needs two processors";
  EXPECT_TRUE(once([] { return yields_of_a_wait({0, 0}) == 0; }));
}

TEST(Waiting, ARankYieldsAfterEachPollForOneOnAnotherNode) {
  EXPECT_TRUE(once([] {
    const int times = yields_of_a_wait({0, 1});
    return times >= kPolls - 2 && times <= kPolls;
  }));
}

}  // namespace
}  // namespace ddp
