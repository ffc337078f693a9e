// A step whose backward pass fails on this rank, and gradients that move into buckets when these are full.
#include <algorithm>
#include <vector>

#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

class GivenUpStep : public ReducerTest {};

TEST_F(GivenUpStep, IsRepeatedWhereNothingWasExchanged) {
  Reducer reducer = make();
  EXPECT_FALSE(reducer.give_up()) << "there is none";
  reducer.prepare_for_backward();
  reducer.mark_ready(0);  // whose bucket waits for those of the others
  EXPECT_TRUE(reducer.give_up());
  EXPECT_THAT(launched(), IsEmpty());
  step(reducer);
  EXPECT_THAT(launched(), SizeIs(5)) << "four buckets and the report";
  EXPECT_THAT(gradients_[0], Each(1.0F)) << "of twins the average is what they have";
  EXPECT_EQ(reducer.stats().iteration, 1U);
}

TEST_F(GivenUpStep, LeavesNothingOfTheGradientsThatItWasGiven) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .find_unused_parameters = true});
  step(reducer);  // of the first one nobody knows what came before
  {
    std::vector<float> lent(10, 5.0F);
    reducer.prepare_for_backward();
    reducer.mark_ready(1, lent);
    EXPECT_TRUE(reducer.give_up());
    std::ranges::fill(lent, 100.0F);
  }
  reducer.prepare_for_backward();
  for (const std::size_t index : {3, 2, 0}) reducer.mark_ready(index);
  reducer.finalize();
  EXPECT_FALSE(reducer.used(1));
  EXPECT_THAT(gradients_[1], Each(2.0F));
}

TEST_F(GivenUpStep, EndsOnAllRanksWhereABucketWasUnderWay) {
  for (const bool find_unused : {false, true}) {
    Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .find_unused_parameters = find_unused});
    const std::size_t before = launched().size();
    reducer.prepare_for_backward();
    reducer.mark_ready(3);
    EXPECT_FALSE(reducer.give_up());
    EXPECT_THAT(launched(), SizeIs(before + 5)) << "the others get all that they wait for";
    EXPECT_THAT(gradients_[3], Each(4.0F)) << "no average";
    step(reducer);
    EXPECT_EQ(reducer.stats().iteration, 1U);
  }
}

TEST_F(GivenUpStep, ThatNoOtherRankTakesPartInIsForgotten) {
  Reducer reducer = make();
  {
    const auto local = reducer.no_sync();
    reducer.prepare_for_backward();
  }
  for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
  EXPECT_TRUE(reducer.give_up());
  step(reducer);
  EXPECT_THAT(launched(), SizeIs(5));
}

TEST_F(GivenUpStep, PassesOnTheErrorOfAnExchange) {
  control_->fail("all_reduce 3");
  Reducer reducer = make();
  reducer.prepare_for_backward();
  const auto marked = error_of([&] {
    for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
  });
  const auto error = marked ? marked : error_of([&] { reducer.give_up(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer_lost);
}

TEST_F(ReducerTest, GradientsMoveIntoTheirBucketWhenItIsFull) {
  std::vector<Parameter> in_buckets = parameters();
  for (Parameter& parameter : in_buckets) parameter.gradient = {};
  std::vector<std::size_t> moved;
  Reducer* made = nullptr;
  Reducer reducer(std::move(in_buckets), group_,
                  {.bucket_cap_bytes = 80,
                   .gradient_as_bucket_view = true,
                   .find_unused_parameters = true,
                   .moved_in = [&](std::span<const std::size_t> indices) {
                     for (const std::size_t index : indices) {
                       moved.push_back(index);
                       gradients_[index].assign(10, -1.0F);  // what was there may go
                       EXPECT_NE(made->bucket_view(index).data(), nullptr);
                     }
                   }});
  made = &reducer;
  reducer.place_gradient(0, gradients_[0]);
  reducer.prepare_for_backward();
  reducer.mark_ready(3, gradients_[3]);
  EXPECT_THAT(moved, IsEmpty());
  std::ranges::fill(floats(reducer.bucket_view(2)), 3.0F);
  reducer.mark_ready(2);  // is there already
  EXPECT_THAT(moved, ElementsAre(2, 3));
  reducer.mark_ready(1, gradients_[1]);
  reducer.finalize();
  EXPECT_THAT(moved, ElementsAre(2, 3, 0, 1));
  for (const std::size_t index : {1, 2, 3}) {
    EXPECT_THAT(floats(reducer.bucket_view(index)), Each(static_cast<float>(index + 1))) << index;
  }
  EXPECT_THAT(gradients_[1], Each(-1.0F)) << "not written to";
}

}  // namespace
}  // namespace ddp
