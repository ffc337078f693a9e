// Many threads and operations at once: each ends once, in order, and only one thread at a time is in the backend.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "support/sanitized.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;

constexpr int kMany = ::ddp::test::cases(100'000);

/// Waits, polls, drops, adds callbacks: as it comes.
void use(ProcessGroup& group, int operations, unsigned seed, std::atomic<int>& callbacks) {
  std::mt19937 random(seed);
  std::vector<float> values(4);
  std::vector<Work> open;
  for (int i = 0; i < operations; ++i) {
    const unsigned choice = random() % 16;
    const Work work = choice < 12 ? group.all_reduce(values) : group.send(values, 1, choice);
    switch (choice % 6) {
      case 0:
      case 1: work.wait(); break;
      case 2: open.push_back(work); break;
      case 3: break;  // dropped
      case 4: work.on_finish([&](const Work&) { ++callbacks; }); break;
      default: static_cast<void>(work.done());
    }
    if (open.size() > 50) {
      for (const Work& each : open) each.wait();
      open.clear();
    }
  }
  group.barrier().wait();
}

struct Case {
  int polls;
  int concurrent;
};

class Threads : public testing::TestWithParam<Case> {};

TEST_P(Threads, MixedOperationsOfOneThread) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  std::atomic<int> callbacks{0};
  {
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    use(group, kMany, 1, callbacks);
  }
  EXPECT_EQ(view->ended, kMany + 1);
  EXPECT_EQ(view->posted, 0);
  EXPECT_FALSE(view->overlap);
  EXPECT_GT(callbacks, kMany / 16);
}

TEST_P(Threads, TwoOnOneGroup) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  std::atomic<int> callbacks{0};
  {
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    ddp::test::run_ranks(2, [&](int thread) { use(group, kMany / 4, static_cast<unsigned>(thread), callbacks); });
    EXPECT_FALSE(view->overlap);
  }
  EXPECT_FALSE(view->out_of_order) << "they are numbered in the order in which they start";
  EXPECT_EQ(view->ended, 2 * (kMany / 4 + 1));
}

TEST_P(Threads, TwoOnTwoGroups) {
  std::atomic<int> callbacks{0};
  ddp::test::run_ranks(2, [&](int thread) {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    use(group, kMany / 4, static_cast<unsigned>(thread), callbacks);
    EXPECT_FALSE(view->overlap);
  });
}

TEST_P(Threads, SeveralWaitForTheSameOperations) {
  ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent);
  for (int round = 0; round < 50; ++round) {
    const Work first = group.barrier();
    const Work second = group.barrier();
    ddp::test::run_ranks(4, [&](int thread) { (thread % 2 == 0 ? first : second).wait(); });
    EXPECT_TRUE(first.done() && second.done());
  }
}

TEST_P(Threads, ClosingEndsEveryWaitForOperationsUnderWay) {
  for (int round = 0; round < 20; ++round) {
    ProcessGroup group = ddp::test::inline_group(1 << 30, GetParam().concurrent);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(group.barrier());
    std::atomic<int> aborted{0};
    std::atomic<int> waiting{0};
    std::vector<std::thread> waiters;
    for (const Work& work : works) {
      waiters.emplace_back([&, work] {
        ++waiting;
        const auto error = ddp::test::error_of([&] { work.wait(); });
        aborted += error && error->code() == ErrorCode::aborted ? 1 : 0;
      });
    }
    while (waiting < 10) std::this_thread::yield();
    { const ProcessGroup last = std::exchange(group, ddp::test::inline_group(0)); }
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(aborted, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Threads, testing::Values(Case{0, 1}, Case{1, 1}, Case{3, 4}),
                         [](const testing::TestParamInfo<Case>& instance) {
                           return "polls_" + std::to_string(instance.param.polls) + "_concurrent_" +
                                  std::to_string(instance.param.concurrent);
                         });

TEST(Concurrency, AsManyCollectivesArePostedAsTheBackendTakes) {
  for (const int concurrent : {1, 3, 100}) {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(200, concurrent, view);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(group.barrier());
    for (const Work& work : works) work.wait();
    EXPECT_EQ(view->most_posted, std::min(concurrent, 10));
  }
}

}  // namespace
}  // namespace ddp
