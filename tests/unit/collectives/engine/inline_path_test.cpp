// Nothing stands between a caller and a backend that completes inline: no memory is taken, no thread is woken.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

#include "collectives/progress_thread.hpp"
#include "unit/collectives/engine/allocation_count.hpp"
#include "unit/collectives/engine/inline_backend.hpp"

namespace ddp {
namespace {

using collectives::ProgressThread;

constexpr int kInlineOperations = 20'000;

/// One of each, waited for in different ways.
void some_operations(ProcessGroup& group, std::vector<float>& values, std::vector<float>& whole) {
  group.all_reduce(values).wait();
  group.broadcast(values, 0).wait(Deadline::after(std::chrono::seconds(60)));
  group.all_gather(values, whole).wait();
  const Work polled = group.barrier();
  while (!polled.done()) std::this_thread::yield();
  const Work sent = group.send(values, 1, 7);
  const Work received = group.recv(values, 1, 8);
  sent.wait();
  const Work copy = received;
  copy.wait();
}

TEST(InlinePath, AllocatesNothing) {
  for (const int polls : {0, 1, 60}) {
    ProcessGroup group = ddp::test::inline_group(polls);
    std::vector<float> values(16);
    std::vector<float> whole(32);
    // Pools grow at first, and again where the progress thread loses its processor while it holds an operation.
    std::uint64_t allocations = 1;
    for (int round = 0; round < 10 && allocations > 0; ++round) {
      for (int i = 0; i < 100; ++i) some_operations(group, values, whole);
      const auto before = ddp::test::allocations_of_this_thread();
      for (int i = 0; i < (polls > 10 ? 100 : kInlineOperations / 6); ++i) some_operations(group, values, whole);
      allocations = ddp::test::allocations_of_this_thread() - before;
    }
    EXPECT_EQ(allocations, 0u) << polls;
  }
  const auto before = ddp::test::allocations_of_this_thread();
  std::make_unique<int>(1).reset();
  std::free(std::malloc(100));
  EXPECT_GE(ddp::test::allocations_of_this_thread(), before + 1) << "the count does not count";
}

TEST(InlinePath, OperationsThatEndAtOnceWakeNobody) {
  ProcessGroup group = ddp::test::inline_group(0);
  std::vector<float> values(16);
  group.all_reduce(values).wait();
  const auto before = ProgressThread::instance().counts();
  for (int i = 0; i < kInlineOperations; ++i) group.all_reduce(values).wait();
  EXPECT_EQ(ProgressThread::instance().counts().wakes, before.wakes);
}

TEST(InlinePath, OthersWakeTheProgressThreadOnceABurst) {
  ProcessGroup group = ddp::test::inline_group(1);
  std::vector<float> values(16);
  const auto before = ProgressThread::instance().counts();
  for (int i = 0; i < kInlineOperations; ++i) group.all_reduce(values).wait();
  const auto after = ProgressThread::instance().counts();
  // it may have slept deeply when this thread was interrupted for long
  EXPECT_LE(after.wakes - before.wakes, 1 + after.deep_sleeps - before.deep_sleeps);
}

}  // namespace
}  // namespace ddp
