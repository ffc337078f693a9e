// The Reducer over a backend that plays the other rank: order and memory of buckets, and how a step fails.
#include <future>
#include <numeric>
#include <optional>

#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

TEST_F(ReducerTest, GradientsAreDividedBeforeTheyAreSummed) {
  Reducer reducer = make();
  std::vector<float> sent;
  control_->effect = [&](const ddp::Operation& operation) {
    if (operation.dtype == DType::float32) sent.push_back(*static_cast<const float*>(operation.input.data()));
    twin(operation);
  };
  step(reducer);
  EXPECT_THAT(sent, ElementsAre(2.0F, 1.5F, 1.0F, 0.5F));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(gradients_[i], std::vector<float>(10, static_cast<float>(i + 1)));
  EXPECT_EQ(reducer.stats().iteration, 1U);
}

TEST_F(ReducerTest, BucketsAreLaunchedInIndexOrderWhateverFillsFirst) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  for (const std::size_t index : {0, 1, 2}) reducer.mark_ready(index);
  EXPECT_TRUE(launched().empty()) << "the first bucket has not been filled";
  reducer.mark_ready(3);
  reducer.finalize();
  EXPECT_THAT(launched(), ElementsAre("all_reduce 3", "all_reduce 4", "all_reduce 5", "all_reduce 6", "all_reduce 7"));
}

TEST_F(ReducerTest, FinalizeWaitsForTheLastBucket) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  control_->hold();
  for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
  auto finalized = std::async(std::launch::async, [&] { reducer.finalize(); });
  ASSERT_TRUE(control_->wait_for("begin all_reduce 3", soon()));
  EXPECT_EQ(finalized.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  control_->release();
  finalized.get();
  EXPECT_TRUE(control_->saw("end all_reduce 6"));
}

TEST_F(ReducerTest, ABucketThatFailsWhileGradientsArriveFailsTheNextLaunchAndTheStep) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  control_->fail("all_reduce 3");
  reducer.mark_ready(3);
  await_failure();
  const auto from_mark = error_of([&] { reducer.mark_ready(2); });
  ASSERT_TRUE(from_mark);
  EXPECT_EQ(from_mark->code(), ErrorCode::peer_lost);
  EXPECT_THAT(from_mark->attempted(), HasSubstr("all_reduce #3"));
  EXPECT_EQ(from_mark->native(), "the connection broke");
  for (const std::size_t index : {1, 0}) EXPECT_TRUE(error_of([&] { reducer.mark_ready(index); }));
  const auto from_finalize = error_of([&] { reducer.finalize(); });
  ASSERT_TRUE(from_finalize) << "even if the program swallowed the first";
  EXPECT_STREQ(from_finalize->what(), from_mark->what());
  EXPECT_EQ(gradients_[2], std::vector<float>(10, 3.0F)) << "a failed step leaves the gradients alone";
  expect_broken(reducer);
}

TEST_F(ReducerTest, ABucketThatFailsAfterTheLastGradientFailsFinalize) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  control_->hold();
  for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
  control_->fail("all_reduce 4");
  control_->release();
  const auto error = error_of([&] { reducer.finalize(); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->attempted(), HasSubstr("all_reduce #4"));
  expect_broken(reducer);
}

TEST_F(ReducerTest, BucketsAreRebuiltInTheOrderOfTheFirstStep) {
  Reducer reducer = make(true);
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  step(reducer, {1, 3, 0, 2});
  step(reducer);
  EXPECT_TRUE(control_->saw("end broadcast 8")) << "rank 0's order counts";
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(1), ElementsAre(3), ElementsAre(0), ElementsAre(2)));
  step(reducer);
  EXPECT_FALSE(control_->saw("begin broadcast 14")) << "once is enough";
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(gradients_[i], std::vector<float>(10, static_cast<float>(i + 1)));
}

TEST_F(ReducerTest, TheOtherRanksOrderCountsWhereItIsRankZero) {
  Reducer reducer = make(true);
  step(reducer);
  control_->effect = [](const ddp::Operation& operation) {
    if (operation.kind != OperationKind::broadcast) return twin(operation);
    auto* const order = static_cast<std::int64_t*>(operation.output.data());
    std::iota(order, order + operation.count, 0);
  };
  step(reducer);
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
}

TEST_F(ReducerTest, ARebuildThatFailsStartsNoStep) {
  Reducer reducer = make(true);
  step(reducer);
  control_->fail("broadcast 8");
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto error = error_of([&] { reducer.prepare_for_backward(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::peer_lost);
    EXPECT_THAT(error->attempted(), HasSubstr("broadcast #8"));
  }
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(0); }));
}

TEST_F(ReducerTest, AParameterWithoutAGradientIsNamedInTheSameStepAndTheNextMayFollow) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  for (const std::size_t index : {3, 1}) reducer.mark_ready(index);
  const auto error = error_of([&] { reducer.finalize(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->cause(), HasSubstr("2 of 4 parameters were not marked ready: 0 'layer0', 2 'layer2'"));
  EXPECT_EQ(error->ranks(), (std::vector<int>{0, 1})) << "the other rank has the same of everything";
  EXPECT_EQ(gradients_[1], std::vector<float>(10, 2.0F)) << "a failed step leaves the gradients alone";
  step(reducer);
}

TEST_F(ReducerTest, AGradientThatIsMarkedTwiceIsRefusedAndTheStepContinues) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  reducer.mark_ready(2);
  const auto error = error_of([&] { reducer.mark_ready(2); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->what(), HasSubstr("'layer2'"));
  for (const std::size_t index : {3, 1, 0}) reducer.mark_ready(index);
  reducer.finalize();
  EXPECT_EQ(gradients_[2], std::vector<float>(10, 3.0F));
}

TEST_F(ReducerTest, CallsInTheWrongOrderAreRefusedAndChangeNothing) {
  Reducer reducer = make();
  EXPECT_THAT(error_of([&] { reducer.finalize(); })->cause(), HasSubstr("none has been started"));
  EXPECT_THAT(error_of([&] { reducer.mark_ready(0); })->cause(), HasSubstr("no backward pass has been started"));
  reducer.prepare_for_backward();
  EXPECT_THAT(error_of([&] { reducer.prepare_for_backward(); })->cause(), HasSubstr("not finalized"));
  EXPECT_THAT(error_of([&] { reducer.mark_ready(4); })->cause(), HasSubstr("no parameter 4 of 4"));
  for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
  reducer.finalize();
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(0); })) << "the step is over";
  step(reducer);
  EXPECT_EQ(reducer.stats().iteration, 2U);
}

TEST_F(ReducerTest, MemoryOutlivesAReducerThatEndsWithinAStep) {
  std::optional<Reducer> reducer = make();
  reducer->prepare_for_backward();
  control_->hold();
  reducer->mark_ready(3);
  ASSERT_TRUE(control_->wait_for("begin all_reduce 3", soon()));
  float written = 0;
  control_->effect = [&](const ddp::Operation& operation) {
    twin(operation);
    written = *static_cast<const float*>(operation.output.data());
  };
  reducer.reset();
  control_->release();
  ASSERT_TRUE(control_->wait_for("end all_reduce 3", soon()));
  EXPECT_EQ(written, 4.0F);
}

TEST_F(ReducerTest, ADifferenceIsNamedByParameterAndRank) {
  control_->effect = [](const ddp::Operation& operation) {
    twin(operation);
    auto* const other = static_cast<char*>(operation.output.data()) + operation.input.size_bytes();
    if (operation.sequence == 1) *other = static_cast<char>(*other + 1);  // the hash
    if (operation.kind != OperationKind::all_gather_v) return;
    std::string_view text{other, operation.input.size_bytes()};
    other[text.find("layer1") + 5] = '9';
  };
  const auto error = error_of([&] { make(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::mismatch);
  EXPECT_EQ(error->ranks(), std::vector<int>{1});
  EXPECT_THAT(error->cause(),
              HasSubstr("parameter 1 differs: rank 0 has 'layer1' float32[10], rank 1 has 'layer9' float32[10]"));
}

// The other rank's description has another text in place of the fault, or of a buffer.
TEST_F(ReducerTest, WhatOneRankAloneFindsWrongEveryRankThrows) {
  const auto other_rank_has = [&](const std::string& ours, const std::string& theirs) {
    control_->effect = [=, compared = false](const ddp::Operation& operation) mutable {
      twin(operation);
      auto* const other = static_cast<char*>(operation.output.data()) + operation.input.size_bytes();
      if (!std::exchange(compared, true)) *other = static_cast<char>(*other ^ 1);  // the hash
      if (operation.kind != OperationKind::all_gather_v) return;
      const std::string_view text{other, operation.input.size_bytes()};
      std::memcpy(other + text.find(ours), theirs.data(), theirs.size());
    };
  };
  auto shared = parameters();
  shared[1].gradient = shared[0].gradient;
  other_rank_has("'layer0' and", "'layer9' and");
  const auto error = error_of([&] { make(shared); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error->ranks(), (std::vector{0, 1}));
  EXPECT_THAT(error->cause(), HasSubstr("on rank 0, the gradients of 'layer0' and 'layer1' share memory"));
  EXPECT_THAT(error->cause(), HasSubstr("on rank 1, the gradients of 'layer9' and 'layer1' share memory"));
  EXPECT_EQ(error->hint(), "give each parameter a gradient of its own");

  other_rank_has("mean float32[3]", "mean float32[5]");
  const auto other_buffer = error_of([&] { Reducer(parameters(), group_, {.buffers = {"mean float32[3]"}}); });
  ASSERT_TRUE(other_buffer);
  EXPECT_EQ(other_buffer->code(), ErrorCode::mismatch);
  EXPECT_THAT(other_buffer->cause(),
              HasSubstr("buffer 0 differs: rank 0 has mean float32[3], rank 1 has mean float32[5]"));
}

TEST_F(ReducerTest, ParametersThatCannotBeAveragedAreRefused) {
  const auto cause = [&](std::vector<Parameter> list) {
    const auto error = error_of([&] { make(std::move(list)); });
    return error ? error->cause() : "";
  };
  EXPECT_EQ(cause({}), "there are no parameters");
  auto list = parameters();
  list[1].gradient = list[1].gradient.slice(0, 5);
  EXPECT_THAT(cause(list), HasSubstr("the gradient of 'layer1' is float32[5]"));
  list = parameters();
  list[2].value = list[2].gradient = TensorView{values_[2].data(), DType::boolean, {10}};
  EXPECT_THAT(cause(list), HasSubstr("'layer2' is boolean"));
  list = parameters();
  list[3].gradient = TensorView{gradients_[3].data(), DType::float32, {10}, {.type = DeviceType::cuda, .index = 0}};
  EXPECT_THAT(cause(list), HasSubstr("the gradient of 'layer3' is on another device"));
}

}  // namespace
}  // namespace ddp
