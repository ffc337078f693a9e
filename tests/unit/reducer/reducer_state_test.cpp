// What a Reducer carries from one step to the next, and must not: where gradients are, who used them, counts of marks.
#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

class ReducerState : public ReducerTest {
 protected:
  Reducer make_with(ReducerOptions options) {
    options.bucket_cap_bytes = 40;
    return Reducer(parameters(), group_, std::move(options));
  }
  static void mark(Reducer& reducer, const std::vector<std::size_t>& order) {
    for (const std::size_t index : order) reducer.mark_ready(index);
  }
};

TEST_F(ReducerState, WhatOnlyThisRankNeverMarksIsExchangedEvenIfUnusedBucketsAreSkipped) {
  Reducer reducer = make_with({.find_unused_parameters = true, .static_graph = true, .skip_all_reduce_unused = true});
  step(reducer, {2, 1, 0});
  EXPECT_THAT(launched(), SizeIs(5));
  step(reducer, {2, 1, 0});  // other ranks may have marked 3
  EXPECT_THAT(launched(), SizeIs(10)) << "four buckets and the report, in each step";
}

TEST_F(ReducerState, GradientsOfStepsWithoutSynchronizationAreAveragedEvenIfGivenAsUnusedNow) {
  Reducer reducer = make_with({.find_unused_parameters = true, .skip_all_reduce_unused = true});
  {
    const auto local = reducer.no_sync();
    step(reducer);
  }
  const std::array<std::size_t, 1> unused{3};
  reducer.prepare_for_backward(unused);
  mark(reducer, {2, 1, 0});
  reducer.finalize();
  EXPECT_THAT(launched(), SizeIs(5));
  EXPECT_TRUE(reducer.used(3));
  reducer.prepare_for_backward(unused);
  mark(reducer, {2, 1, 0});
  reducer.finalize();
  EXPECT_THAT(launched(), SizeIs(9)) << "nothing had accumulated";
}

TEST_F(ReducerState, AfterMissingGradientsTheMemoryOfThatStepIsForgotten) {
  Reducer reducer = make_with({});
  std::optional<std::vector<float>> lent(std::in_place, 10, 5.0F);
  reducer.prepare_for_backward();
  reducer.mark_ready(3, *lent);
  EXPECT_TRUE(error_of([&] { reducer.finalize(); }));
  std::ranges::fill(*lent, 100.0F);
  reducer.prepare_for_backward();
  mark(reducer, {2, 1, 0});
  EXPECT_TRUE(error_of([&] { reducer.finalize(); }));
  EXPECT_THAT(std::span(static_cast<float*>(reducer.bucket_view(3).data()), 10), Each(4.0F))
      << "(4 + 4) / 2 of its own memory";
}

TEST_F(ReducerState, AnotherGroupCountsAStaticGraphAnew) {
  Reducer reducer = make_with({.static_graph = true});
  step(reducer, {2, 2, 1, 0});
  EXPECT_FALSE(reducer.used(3));
  reducer.change_group(group_);
  EXPECT_TRUE(reducer.used(3)) << "the new group has averaged nothing yet";
  step(reducer, {3, 2, 1, 0});
  reducer.prepare_for_backward();
  mark(reducer, {3, 2, 1, 0});
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(2); }));
  reducer.finalize();
}

TEST_F(ReducerState, AnotherGroupKnowsNothingOfStepsBefore) {
  Reducer reducer = make_with({.find_unused_parameters = true, .skip_all_reduce_unused = true});
  const std::array<std::size_t, 1> unused{3};
  const auto step_without_3 = [&] {
    reducer.prepare_for_backward(unused);
    mark(reducer, {2, 1, 0});
    reducer.finalize();
  };
  step_without_3();
  step_without_3();
  EXPECT_THAT(launched(), SizeIs(9));
  reducer.change_group(group_);
  step_without_3();
  EXPECT_THAT(launched(), SizeIs(14)) << "a rank that was in another group may have accumulated gradients";

  reducer.prepare_for_backward();
  mark(reducer, {3, 2});
  reducer.change_group(group_);
  step_without_3();
  EXPECT_FALSE(reducer.used(3)) << "a mark of the step that was left counts";
}

TEST_F(ReducerState, ARefusedMarkDoesNotSayWhereTheGradientIs) {
  auto list = parameters();
  list.push_back({.name = "tied", .value = values_[3], .gradient = gradients_[3]});
  Reducer reducer(list, group_, {.bucket_cap_bytes = 40});
  std::vector<float> gradient(10, 6.0F);
  std::vector<float> refused(10, 9.0F);
  reducer.prepare_for_backward();
  reducer.mark_ready(3, gradient);
  reducer.mark_ready(4, gradient);
  std::ranges::fill(gradient, 0.0F);
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(4, refused); }));
  mark(reducer, {2, 1, 0});
  reducer.finalize();
  EXPECT_THAT(gradient, Each(6.0F));
  EXPECT_THAT(refused, Each(9.0F));
}

TEST_F(ReducerState, GradientsThatStayUnmarkedAreWhereTheyWerePlaced) {
  Reducer reducer = make_with({.find_unused_parameters = true});
  control_->effect = [&](const ddp::Operation& operation) {
    if (operation.dtype == DType::int32) {  // the other rank has used all
      auto* const sums = static_cast<std::int32_t*>(operation.output.data());
      for (std::size_t i = 1; i < 5; ++i) ++sums[i];
      return;
    }
    for (float& value : floats(operation.output)) value += 5;
  };
  std::vector<float> elsewhere(gradients_[2].size(), 8);
  reducer.place_gradient(2, elsewhere);
  reducer.place_gradient(3, TensorView{});
  reducer.prepare_for_backward(std::array<std::size_t, 1>{3});
  EXPECT_THAT(cause_of([&] { reducer.place_gradient(1, TensorView{}); }), HasSubstr("a backward pass runs"));
  mark(reducer, {1, 0});
  reducer.finalize();
  EXPECT_THAT(elsewhere, Each(8.0F / 2 + 5));
  EXPECT_THAT(gradients_[2], Each(3.0F)) << "is not where it counts";
  EXPECT_THAT(gradients_[3], Each(4.0F));
  const TensorView zeros = reducer.bucket_view(3);
  EXPECT_THAT((std::span{static_cast<const float*>(zeros.data()), zeros.numel()}), Each(5.0F)) << "no memory: zeros";
  EXPECT_THAT(cause_of([&] {
                reducer.place_gradient(0, TensorView{elsewhere.data(), DType::float32, {1}});
              }),
              HasSubstr("expected float32"));
  control_->effect = twin;
  std::vector<Parameter> without_memory = parameters();
  for (Parameter& parameter : without_memory) parameter.gradient = {};
  Reducer in_buckets(std::move(without_memory), group_, {.gradient_as_bucket_view = true});
  EXPECT_THAT(cause_of([&] { in_buckets.place_gradient(0, TensorView{}); }), HasSubstr("in the buckets"));
}

TEST_F(ReducerState, AnUnusedNameOfASharedParameterCountsAsItsMark) {
  auto list = parameters();
  list.push_back({.name = "tied", .value = values_[3], .gradient = gradients_[3]});
  Reducer reducer(list, group_, {.bucket_cap_bytes = 40, .find_unused_parameters = true});
  reducer.prepare_for_backward(std::array<std::size_t, 2>{4, 4});
  mark(reducer, {3, 2, 1, 0});
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(4); }));
  reducer.finalize();
  EXPECT_TRUE(reducer.used(3));
}

TEST_F(ReducerState, GradientsOnTheCpuHaveNoProducer) {
  Reducer reducer = make();
  const Stream stream{.device = {.type = DeviceType::cuda, .index = 0}, .handle = nullptr};
  reducer.prepare_for_backward();
  for (const auto& error : {error_of([&] { reducer.mark_ready(0, stream); }),
                            error_of([&] { reducer.mark_ready(0, gradients_[0], stream); })}) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("leave it out: gradients on the CPU are computed by the caller"));
  }
  mark(reducer, {3, 2, 1, 0});
  reducer.finalize();
}

TEST_F(ReducerState, NamesOfASharedParameterHaveOneSizeAndType) {
  std::vector<float> value(10);
  for (const TensorView& other :
       {TensorView{value.data(), DType::float32, {5}}, TensorView{value.data(), DType::int32, {10}}}) {
    EXPECT_THAT(cause_of([&] {
                  Reducer({{.name = "first", .value = value}, {.name = "second", .value = other}}, group_);
                }),
                HasSubstr("'first' and 'second' share the memory of their values"));
  }
}

TEST_F(ReducerState, CompressionRefusesAHookThatAddsWithoutLoss) {
  const Error error = test::thrown_by([] { compress_wrapper(DType::float16, exact_average_hook()); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(compress_wrapper(DType::float16)->name(), "all_reduce of float16");
}

TEST_F(ReducerState, AStepWithoutSynchronizationBeforeBucketsAreRebuiltDoesNotLoseTheOrder) {
  Reducer reducer = make_with({});
  step(reducer, {0, 2, 1, 3});
  {
    const auto local = reducer.no_sync();
    step(reducer, {3, 2, 1, 0});
  }
  step(reducer);
  EXPECT_THAT(reducer.ready_order(), ElementsAre(0, 2, 1, 3));
}

}  // namespace

// A step whose backward pass fails on this rank, and gradients that move into buckets when these are full.

namespace {

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
