// Several operations that start as one: in the backend, in the order of the group, and in errors.
#include <ddp/batch.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collectives/engine/allocation_count.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::error_of;
using ddp::test::soon;
using testing::ElementsAre;
using testing::HasSubstr;

class BatchTest : public testing::Test {
 protected:
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

/// Starts two operations as one with ever less memory. @return what a call behind each failure takes from the heap
std::uint64_t taken_behind_failures(ProcessGroup& group, int& failed) {
  std::vector<float> values(4);
  std::uint64_t taken = 0;
  for (int i = 0; i < 3; ++i) group.all_reduce(values).wait();  // what is taken once
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
  // Several tries: pools also grow where the progress thread loses its processor while it holds an operation.
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
  const auto error = error_of([&] { Batch(group_).all_reduce(values_).broadcast(values_, 0).start().wait(); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("the connection broke"));
}

TEST_F(BatchTest, IsEmptyAfterTheStart) {
  Batch batch(group_);
  batch.all_reduce(values_).all_reduce(whole_);
  EXPECT_EQ(batch.size(), 2U);
  batch.start().wait();
  EXPECT_EQ(batch.size(), 0U);
  const auto error = error_of([&] { batch.start().wait(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
}

TEST_F(BatchTest, RefusesWhatCannotStartTogether) {
  const auto error = error_of([&] { Batch(group_).all_reduce(values_).send(values_, 1).start().wait(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->what(), HasSubstr("together with collectives"));
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
