// The handle of an operation: what it reports, what it calls at the end, what it keeps.

#include <ddp/batch.hpp>
#include <ddp/wait_watch.hpp>

#include "collectives/wait_ladder.hpp"
#include "unit/collectives/engine/allocation_count.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::error_of;
using ddp::test::soon;
using ddp::test::thrown_by;

struct WorkTest : testing::Test {
  ProcessGroup& group() {
    if (!group_) group_ = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control_));
    return *group_;
  }
  static bool eventually(const std::function<bool()>& holds) {
    const Deadline deadline = soon();
    while (!holds() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
    return holds();
  }

  std::shared_ptr<ddp::test::BackendControl> control_ = std::make_shared<ddp::test::BackendControl>();
  std::optional<ProcessGroup> group_;
  std::vector<float> values_ = std::vector<float>(4);
};

TEST_F(WorkTest, CallsBackOnceInOrderFromTheThreadThatWaits) {
  // the progress thread may happen to be the one that polls, but not always
  bool by_waiter = false;
  for (int round = 0; round < 50 && !by_waiter; ++round) {
    control_->hold();
    const Work work = group().barrier();
    std::atomic<int> calls{0};
    std::atomic<std::thread::id> caller{};
    for (const int number : {1, 2, 3}) {
      work.on_finish([&, number](const Work& finished) {
        EXPECT_TRUE(finished.done());
        caller = std::this_thread::get_id();
        EXPECT_EQ(++calls, number);
      });
    }
    EXPECT_EQ(calls, 0);
    std::atomic<bool> same{false};
    std::thread waiter([&] {
      work.wait();
      same = caller.load() == std::this_thread::get_id();
    });
    std::this_thread::sleep_for(milliseconds(5));
    control_->release();
    waiter.join();
    ASSERT_TRUE(eventually([&] { return calls == 3; }));
    by_waiter = same;
  }
  EXPECT_TRUE(by_waiter);
}

TEST_F(WorkTest, CallsBackFromTheProgressThreadWhenNobodyWaits) {
  control_->hold();
  std::atomic<std::thread::id> caller{};
  group().barrier().on_finish([&](const Work&) { caller = std::this_thread::get_id(); });
  control_->release();
  ASSERT_TRUE(eventually([&] { return caller.load() != std::thread::id{}; }));
  EXPECT_NE(caller.load(), std::this_thread::get_id());
}

TEST_F(WorkTest, CallsBackAtOnceWhenItIsFinished) {
  const Work work = group().barrier();
  std::atomic<bool> called_back{false};  // by then, the finishing thread no longer looks for functions to call
  work.on_finish([&](const Work&) { called_back = true; });
  work.wait();
  ASSERT_TRUE(eventually([&] { return called_back.load(); }));
  int calls = 0;
  work.on_finish([&](const Work&) { ++calls; });
  EXPECT_EQ(calls, 1);
  work.on_finish([](const Work&) { throw std::runtime_error("this is only logged"); });
}

TEST_F(WorkTest, ACallbackMayStartOperationsAndFailWithoutHarm) {
  control_->hold();
  std::atomic<int> ends{0};
  const Work first = group().barrier();
  first.on_finish([](const Work&) { throw std::runtime_error("this is only logged"); });
  first.on_finish([&](const Work&) { group().barrier().on_finish([&](const Work&) { ++ends; }); });
  control_->release();
  first.wait();
  EXPECT_TRUE(eventually([&] { return ends == 1; }));
  EXPECT_FALSE(error_of([&] { group().barrier().wait(); }));
}

TEST_F(WorkTest, CallsBackAfterAFailureToo) {
  control_->fail("barrier 1");
  std::atomic<bool> failed{false};
  const Work work = group().barrier();
  work.on_finish([&](const Work& finished) { failed = finished.error().has_value(); });
  EXPECT_TRUE(error_of([&] { work.wait(); }));
  EXPECT_TRUE(eventually([&] { return failed.load(); }));
}

TEST_F(WorkTest, ACallbackMayHoldTheLastHandleOfTheGroup) {
  control_->hold();
  std::atomic<bool> called{false};
  {
    ProcessGroup own = std::exchange(group(), ddp::test::inline_group(0));
    group_.reset();
    own.barrier().on_finish([own, &called](const Work&) { called = true; });
  }
  control_->release();
  EXPECT_TRUE(eventually([&] { return called && control_->saw("destroyed"); }));
}

TEST_F(WorkTest, HoldsAnOwnerOfTheMemoryUntilTheEnd) {
  control_->hold();
  auto memory = std::make_shared<std::vector<float>>(4);
  const Work work = group().all_reduce(*memory, ReduceOp::sum, {{}, memory});
  const std::weak_ptr<std::vector<float>> seen = memory;
  memory.reset();
  EXPECT_FALSE(seen.expired());
  control_->release();
  work.wait();
  EXPECT_TRUE(eventually([&] { return seen.expired(); })) << "although there is still a handle";
}

TEST_F(WorkTest, TheLastMomentOfTheClockIsADeadline) {
  control_->hold();
  const Work work = group().barrier(Deadline{Deadline::Clock::time_point::max()});
  std::thread releases([this] {
    std::this_thread::sleep_for(milliseconds(20));
    control_->release();
  });
  EXPECT_NO_THROW(work.wait());
  releases.join();
}

TEST_F(WorkTest, OrderWaitsForTheCpu) {
  control_->polls_needed = 3;
  const Work work = group().barrier();
  work.order({.device = {.type = DeviceType::cpu, .index = 0}, .handle = nullptr});
  EXPECT_TRUE(work.done());
}

TEST_F(WorkTest, OrderIsRefusedByBackendsWithoutStreams) {
  const Work work = group().barrier();
  const Error error =
      error_of([&] { work.order({.device = {.type = DeviceType::cuda, .index = 0}, .handle = nullptr}); }).value();
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("wait for it"));
}

/// Over a backend whose operations run on streams.
class StreamWorkTest : public WorkTest {
 protected:
  StreamWorkTest() {
    control_->traits.stream_ordered = true;
    control_->traits.serves_cuda = true;
    control_->hold();
  }
  const Stream stream_{.device = {.type = DeviceType::cuda, .index = 5}, .handle = this};
  const TensorView on_gpu_{values_.data(), DType::float32, {4}, {.type = DeviceType::cuda, .index = 5}};
};

TEST_F(StreamWorkTest, EverythingIsPostedBeforeTheCallsReturn) {
  const Work first = group().barrier();
  const Work sent = group().send(on_gpu_, 1, 7);
  const Work second = group().all_reduce(on_gpu_);
  EXPECT_THAT(control_->events(), testing::ElementsAre("begin barrier 1", "post send tag 7", "begin all_reduce 2"))
      << "streams keep the order";
  second.order(stream_);
  EXPECT_TRUE(control_->saw("order all_reduce 2 5"));
  EXPECT_FALSE(second.done());
  control_->release();
  second.wait();
  second.order(stream_);  // nothing to wait for
}

TEST_F(StreamWorkTest, AnotherThreadThatDrivesDoesNotMakeItLate) {
  std::atomic<bool> over{false};
  const Work first = group().barrier();
  std::thread drives([&] {
    while (!over) static_cast<void>(first.done());
  });
  for (int i = 2; i < 300; ++i) {
    static_cast<void>(group().barrier());
    EXPECT_TRUE(control_->saw("begin barrier " + std::to_string(i)));
  }
  over = true;
  drives.join();
  control_->release();
}

TEST_F(StreamWorkTest, OrderAsksAgainUntilTheOperationIsInItsStream) {
  control_->orders_needed = 3;
  const Work work = group().barrier();
  work.order(stream_);
  const auto events = control_->events();
  EXPECT_EQ(std::count(events.begin(), events.end(), "order barrier 1 5"), 3);
  control_->release();
  work.wait();
}

TEST_F(StreamWorkTest, InTheDefaultStreamItIsInPlaceWhenTheCallReturns) {
  control_->orders_needed = 3;
  CallOptions options;
  options.in_stream = true;
  const Work work = group().all_reduce(on_gpu_, ReduceOp::sum, options);
  const auto events = control_->events();
  EXPECT_EQ(std::count(events.begin(), events.end(), "order all_reduce 1 5"), 3);
  control_->release();
  work.wait();
}

TEST_F(StreamWorkTest, TheStreamThatEachThreadHasIsRefused) {
  CallOptions options;
  options.stream = Stream{.device = stream_.device, .handle = reinterpret_cast<void*>(2)};
  const Error error = thrown_by([&] { static_cast<void>(group().all_reduce(on_gpu_, ReduceOp::sum, options)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  control_->release();
}

TEST_F(StreamWorkTest, AStreamThatIsNotOrderedIsAnError) {
  control_->orders_needed = 1'000'000'000;
  control_->ignores_abort = true;
  const Work work = group().barrier({Deadline::after(milliseconds(300))});
  EXPECT_TRUE(error_of([&] { work.order(stream_); }));
  EXPECT_FALSE(work.done());
  control_->release();
}

TEST_F(StreamWorkTest, OrderTellsAFailure) {
  control_->fail("barrier 1");
  const Work work = group().barrier();
  EXPECT_TRUE(eventually([&] { return work.done(); }));
  EXPECT_TRUE(error_of([&] { work.order(stream_); }));
}

TEST_F(StreamWorkTest, TheBackendIsToldTheCallersStream) {
  std::vector<const void*> handles;
  control_->release();
  control_->effect = [&](const Operation& operation) {
    EXPECT_EQ(operation.stream.device.index, 5);
    handles.push_back(operation.in_stream ? operation.stream.handle : nullptr);
  };
  group().all_reduce(on_gpu_).wait();
  CallOptions options;
  options.stream = stream_;
  options.in_stream = true;
  group().all_reduce(on_gpu_, ReduceOp::sum, options).wait();
  EXPECT_THAT(handles, testing::ElementsAre(nullptr, static_cast<const void*>(this)));
}

TEST_F(StreamWorkTest, ATimeoutTellsWhenItWasIssuedAndWhetherItBegan) {
  for (const bool starts : {false, true}) {
    const auto control = std::make_shared<ddp::test::BackendControl>();
    control->traits = control_->traits;
    control->starts = starts;
    control->hold();
    ProcessGroup alone{collectives::GroupEngine::make(ddp::test::members_of(1), ddp::test::fake_backends(control),
                                                      collectives::ConnectOptions{}, milliseconds(600))};
    testing::internal::CaptureStderr();
    const Work work = alone.barrier();
    const auto error = error_of([&] { work.wait(); });
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::timeout);
    EXPECT_THAT(log, HasSubstr("barrier #1: it was issued 0."));
    EXPECT_THAT(log, HasSubstr(starts ? "and began 0." : "has not begun on the device"));
  }
}

TEST_F(WorkTest, OutlivesItsGroup) {
  const Work done = group().barrier();
  done.wait();
  control_->hold();
  const Work open = group().barrier();
  group_.reset();
  EXPECT_TRUE(control_->saw("destroyed")) << "handles do not keep the backend";
  EXPECT_FALSE(done.error());
  const Work copy = open;
  ASSERT_TRUE(copy.error());
  EXPECT_EQ(copy.error()->code(), ErrorCode::aborted);
}

TEST_F(WorkTest, IsUsedAgainOnlyWhenNoHandleIsLeft) {
  const Work kept = group().barrier();
  kept.wait();
  const auto end = kept.finished_at();
  for (int i = 0; i < 1000; ++i) group().barrier().wait();
  EXPECT_EQ(kept.finished_at(), end);
  EXPECT_EQ(control_->releases(), 1001);
}

TEST_F(WorkTest, WhatIsLookedForEndsAWaitWhileTheOperationGoesOn) {
  static int looks = 0;
  looks = 0;
  control_->hold();
  const Work work = group().barrier();
  {
    const WaitWatch outer(+[] { FAIL() << "of an outer one"; });
    const WaitWatch watch(+[] {
      if (++looks == 3) throw std::runtime_error("a signal");
    });
    const WaitWatch none(nullptr);
    EXPECT_THROW(work.wait_watched(), std::runtime_error);
    EXPECT_EQ(looks, 3);
    EXPECT_TRUE(error_of([&] { work.wait(Deadline::after(milliseconds(120))); })) << "which is not watched";
    EXPECT_EQ(looks, 3);
  }
  EXPECT_EQ(WaitWatch::current(), nullptr);
  EXPECT_FALSE(work.done());
  control_->release();
  EXPECT_FALSE(error_of([&] { work.wait_watched(); }));
}

}  // namespace

// Several operations that start as one: in the backend, in the group's order, and in errors.

namespace {

using ddp::test::error_of;
using ddp::test::soon;
using ddp::test::thrown_by;

struct BatchTest : testing::Test {
  std::shared_ptr<ddp::test::BackendControl> control_ = std::make_shared<ddp::test::BackendControl>();
  ProcessGroup group_ = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control_));
  std::vector<float> values_ = std::vector<float>(4);
  std::vector<float> whole_ = std::vector<float>(8);
};

TEST_F(BatchTest, StartsAndEndsTogether) {
  control_->hold();
  const Work work = Batch(group_).send(values_, 1, 3).recv(whole_, 1, 4).start();
  EXPECT_THAT(control_->events(2, soon()), ElementsAre("post send tag 3", "post recv tag 4"));
  control_->release("send tag 3");
  EXPECT_FALSE(work.done());
  control_->release();
  work.wait();
  EXPECT_EQ(control_->releases(), 1) << "one request for both";
}

/// Starts two operations as one with ever less memory. @return heap bytes that a call after each failure takes
std::uint64_t taken_behind_failures(ProcessGroup& group, int& failed) {
  std::vector<float> values(4);
  std::uint64_t taken = 0;
  for (int i = 0; i < 3; ++i) group.all_reduce(values).wait();  // takes one-time memory
  failed = 0;
  for (int others = 0; others < 30; ++others) {
    Batch batch(group);
    batch.all_reduce(values).broadcast(values, 1);
    ddp::test::fail_an_allocation(others);
    try {
      const Work work = batch.start();
      ddp::test::fail_an_allocation(-1);
      work.wait();
      break;
    } catch (const std::bad_alloc&) {
      ++failed;
      const auto before = ddp::test::allocations_of_this_thread();
      group.all_reduce(values).wait();
      taken += ddp::test::allocations_of_this_thread() - before;
    }
  }
  ddp::test::fail_an_allocation(-1);
  return taken;
}

TEST(BatchWithoutMemory, GivesBackWhatItHasTaken) {
  std::uint64_t taken = 1;
  // Several tries: pools also grow if the progress thread loses its processor while it holds an operation.
  for (int round = 0; round < 10 && taken > 0; ++round) {
    ProcessGroup group = ddp::test::group_over(std::make_unique<ddp::test::InlineBackend>(0));
    int failed = 0;
    taken = taken_behind_failures(group, failed);
    EXPECT_GE(failed, 2);
  }
  EXPECT_EQ(taken, 0u) << "a slot is lost, so the next operation needs another one";
}

TEST_F(BatchTest, CollectivesHaveANumberEachAndAreOneOperationInTheGroupsOrder) {
  control_->hold();
  const Work first = Batch(group_)
                         .all_reduce(values_)
                         .broadcast(values_, 1)
                         .reduce(values_, 0)
                         .all_gather(values_, whole_)
                         .all_gather_v(values_, whole_, std::vector<std::size_t>{4, 4})
                         .gather(values_, whole_, 0)
                         .scatter(whole_, values_, 0)
                         .reduce_scatter(whole_, values_)
                         .all_to_all(whole_, whole_)
                         .start();
  const Work second = group_.barrier();
  const auto begun = control_->events(9, soon());
  ASSERT_EQ(begun.size(), 9U);
  EXPECT_EQ(begun.back(), "begin all_to_all 9");
  control_->release();
  second.wait();
  EXPECT_TRUE(first.done());
  EXPECT_TRUE(control_->saw("end barrier 10"));
}

TEST_F(BatchTest, FailsAsAWhole) {
  control_->fail("broadcast 2");
  const Error error = thrown_by([&] { Batch(group_).all_reduce(values_).broadcast(values_, 0).start().wait(); });
  EXPECT_THAT(error.what(), HasSubstr("the connection broke"));
}

TEST_F(BatchTest, IsEmptyAfterTheStart) {
  Batch batch(group_);
  batch.all_reduce(values_).all_reduce(whole_);
  EXPECT_EQ(batch.size(), 2U);
  batch.start().wait();
  EXPECT_EQ(batch.size(), 0U);
  const Error error = thrown_by([&] { batch.start().wait(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

TEST_F(BatchTest, RefusesWhatCannotStartTogether) {
  const Error error = thrown_by([&] { Batch(group_).all_reduce(values_).send(values_, 1).start().wait(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("together with collectives"));
  EXPECT_EQ(error_of([&] { Batch(group_).send(values_, 0); })->code(), ErrorCode::invalid_argument) << "to itself";
  EXPECT_TRUE(control_->events().empty());
}

TEST_F(BatchTest, HoldsAnOwnerUntilTheEnd) {
  control_->hold();
  auto memory = std::make_shared<int>();
  const std::weak_ptr<int> seen = memory;
  const Work work = Batch(group_).send(values_, 1).recv(whole_, 1).start({{}, std::move(memory)});
  EXPECT_FALSE(seen.expired());
  control_->release();
  work.wait();
  for (int i = 0; i < 2000 && !seen.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(seen.expired());
}

}  // namespace

}  // namespace ddp

// What a waiting rank does between two polls, depending on where the others are and what else runs: this program counts
// how often it yields.

namespace {

thread_local int yields = 0;
thread_local bool others_compute = false;

}  // namespace

/// Replaces the C library's: there are no others, or they compute for a time slice.
extern "C" int sched_yield() noexcept {
  ++yields;
  if (others_compute) std::this_thread::sleep_for(2 * ddp::collectives::Crowd::kLent);
  return 0;
}

namespace ddp {
namespace {

// So few that no wait looks at the clock twice: the machine's load does not matter.
constexpr int kPolls = 6;

/// How often one of two ranks on @p nodes yields while it waits for kPolls polls.
int yields_of_a_wait(std::vector<int> nodes) {
  auto members = ddp::test::members_of(2);
  members.nodes = std::move(nodes);
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"test", std::make_unique<ddp::test::InlineBackend>(kPolls)});
  ProcessGroup group{collectives::GroupEngine::make(std::move(members), std::move(backends),
                                                    collectives::ConnectOptions{}, std::chrono::seconds(60))};
  const Work work = group.barrier();
  yields = 0;
  work.wait();
  return yields;
}

/// Whether it holds in one of many tries, since the progress thread may be the one that polls, and this process may
/// have lost its processor shortly before.
bool once(const std::function<bool()>& holds) {
  using collectives::Crowd;
  for (int attempt = 0; attempt < 50; ++attempt) {
    while (Crowd::of_process().at(Crowd::Clock::now())) std::this_thread::sleep_for(std::chrono::milliseconds(20));
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

TEST(Waiting, WhoSeesThatOthersComputeSleepsInsteadOfYielding) {
  using collectives::WaitLadder;
  for (const bool may_spin : {true, false}) {
    collectives::Crowd crowd;
    collectives::YieldBudget budget;
    WaitLadder ladder(may_spin, WaitLadder::kFirstRest, &budget, &crowd);
    yields = 0;
    others_compute = true;
    const auto until_rest = [&ladder] {
      while (ladder.pause() == std::chrono::microseconds::zero()) continue;
    };
    until_rest();
    EXPECT_EQ(yields, 1);
    for (int wait = 0; wait < 10; ++wait) {
      ladder.reset();
      until_rest();
    }
    others_compute = false;
    EXPECT_EQ(yields, 1);
    const auto now = collectives::Crowd::Clock::now();
    EXPECT_TRUE(crowd.at(now));
    EXPECT_FALSE(crowd.at(now + collectives::Crowd::kFirst));
  }
}

TEST(Waiting, ACrowdThatComesBackAtOnceLastsLongerEachTime) {
  using collectives::Crowd;
  Crowd crowd;
  auto now = Crowd::Clock::now();
  const auto lasts = [&] {
    EXPECT_TRUE(crowd.judge(now, Crowd::kLent));
    const auto begin = now;
    while (crowd.at(now)) now += std::chrono::milliseconds(1);
    return now - begin;
  };
  for (auto length = Crowd::kFirst; length < Crowd::kLongest; length *= 2) EXPECT_EQ(lasts(), length);
  EXPECT_EQ(lasts(), Crowd::kLongest);
  EXPECT_FALSE(crowd.judge(now, Crowd::kLent / 2));
  EXPECT_EQ(lasts(), Crowd::kLongest);
  now += Crowd::kApart * Crowd::kLongest + std::chrono::milliseconds(1);
  EXPECT_EQ(lasts(), Crowd::kFirst);
}

}  // namespace

}  // namespace ddp
