// Nothing stands between a caller and a backend that completes inline: no memory and no lock is taken, no thread is
// woken.
#include "collectives/host/host_backend.hpp"
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

/// What this thread has taken in some operations; the least of several tries, for the progress thread may be holding an
/// operation when the next is called.
struct Taken {
  std::uint64_t allocations = 0;
  std::uint64_t locks = 0;
};
template <class Operations>
Taken taken_by(Operations&& operations) {
  Taken least{.allocations = ~std::uint64_t{0}, .locks = ~std::uint64_t{0}};
  for (int round = 0; round < 100; ++round) {
    const Taken before{.allocations = ddp::test::allocations_of_this_thread(),
                       .locks = ddp::test::locks_of_this_thread()};
    operations();
    least.allocations = std::min(least.allocations, ddp::test::allocations_of_this_thread() - before.allocations);
    least.locks = std::min(least.locks, ddp::test::locks_of_this_thread() - before.locks);
  }
  return least;
}

TEST(InlinePath, TakesNoLock) {
  ProcessGroup group = ddp::test::inline_group(0);
  std::vector<float> values(256);
  const Taken taken = taken_by([&] {
    for (int i = 0; i < 100; ++i) group.all_reduce(values).wait();
  });
  EXPECT_EQ(taken.locks, 0u);
  EXPECT_EQ(taken.allocations, 0u);
#ifndef DDP_SANITIZED
  const std::uint64_t before = ddp::test::locks_of_this_thread();
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  EXPECT_EQ(ddp::test::locks_of_this_thread(), before + 1) << "the count does not count";
#endif
}

/// A thread a rank, in one process.
TEST(InlinePath, SharedMemoryTakesNoLockEither) {
  constexpr int kRanks = 2;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Bytes> addresses;
  for (int rank = 0; rank < kRanks; ++rank) {
    BackendConfig config;
    config.group = "no locks";
    config.rank = rank;
    config.size = kRanks;
    config.nodes = {0, 0};
    config.interface_address = "127.0.0.1";
    backends.push_back(collectives::host::create(config, "here"));
    addresses.push_back(backends.back()->address());
  }
  std::vector<Taken> taken(kRanks);
  const auto run = [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    backends[place]->connect(addresses, Deadline::after(std::chrono::seconds(60)));
    collectives::GroupMembers members = ddp::test::members_of(kRanks);
    members.rank = rank;
    std::vector<collectives::GroupBackend> own;
    own.push_back({"host", std::move(backends[place])});
    ProcessGroup group{collectives::GroupEngine::make(std::move(members), std::move(own), collectives::ConnectOptions{},
                                                      std::chrono::seconds(60))};
    std::vector<float> values(256, 0.0F);  // 1 KiB
    taken[place] = taken_by([&] {
      for (int i = 0; i < 30; ++i) group.all_reduce(values).wait();  // so few that none waits long in some round
    });
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const Taken& each : taken) {
    EXPECT_EQ(each.locks, 0u);
    EXPECT_EQ(each.allocations, 0u);
  }
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
