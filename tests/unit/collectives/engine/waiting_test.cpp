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

// Fewer than a rank that may spin needs to look at the clock, and than one may yield before it rests.
constexpr int kPolls = 10;

/// Whether one of two ranks on @p nodes, waiting for kPolls polls, yields as often as @p expected says: in one of many
/// tries, since other programs make it yield less, and other threads that drive let it wait longer.
bool yields_as(const std::function<bool(int)>& expected, std::vector<int> nodes) {
  auto members = ddp::test::members_of(2);
  members.nodes = std::move(nodes);
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"test", std::make_unique<ddp::test::InlineBackend>(kPolls)});
  ProcessGroup group{std::make_shared<collectives::GroupEngine>(
      std::move(members), std::move(backends), collectives::ConnectOptions{}, std::chrono::seconds(60))};
  for (int attempt = 0; attempt < 200; ++attempt) {
    const Work work = group.barrier();
    yields = 0;
    work.wait();
    if (expected(yields)) return true;
  }
  return false;
}

TEST(Waiting, ARankSpinsForAnotherOnItsNodeIfEachHasAProcessor) {
  if (!collectives::ProcessorShare::read().enough_for(2)) GTEST_SKIP() << "needs two processors";
  EXPECT_TRUE(yields_as([](int times) { return times == 0; }, {0, 0}));
}

TEST(Waiting, ARankYieldsAfterEachPollForOneOnAnotherNode) {
  EXPECT_TRUE(yields_as([](int times) { return times >= kPolls - 2 && times <= kPolls; }, {0, 1}));
}

}  // namespace
}  // namespace ddp
