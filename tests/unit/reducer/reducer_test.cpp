// The Reducer over a backend that plays the other rank: bucket order and memory, and how a step fails.
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
  const Error from_mark = test::thrown_by([&] { reducer.mark_ready(2); });
  EXPECT_EQ(from_mark.code(), ErrorCode::peer_lost);
  EXPECT_THAT(from_mark.attempted(), HasSubstr("all_reduce #3"));
  EXPECT_EQ(from_mark.native(), "the connection broke");
  for (const std::size_t index : {1, 0}) EXPECT_TRUE(error_of([&] { reducer.mark_ready(index); }));
  const auto from_finalize = error_of([&] { reducer.finalize(); });
  ASSERT_TRUE(from_finalize) << "even if the program swallowed the first";
  EXPECT_STREQ(from_finalize->what(), from_mark.what());
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
  const Error error = test::thrown_by([&] { reducer.finalize(); });
  EXPECT_THAT(error.attempted(), HasSubstr("all_reduce #4"));
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
    const Error error = test::thrown_by([&] { reducer.prepare_for_backward(); });
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_THAT(error.attempted(), HasSubstr("broadcast #8"));
  }
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(0); }));
}

TEST_F(ReducerTest, AParameterWithoutAGradientIsNamedInTheSameStepAndTheNextMayFollow) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  for (const std::size_t index : {3, 1}) reducer.mark_ready(index);
  const Error error = test::thrown_by([&] { reducer.finalize(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.cause(), HasSubstr("2 of 4 parameters were not marked ready: 0 'layer0', 2 'layer2'"));
  EXPECT_EQ(error.ranks(), (std::vector<int>{0, 1})) << "the other rank has the same of everything";
  EXPECT_EQ(gradients_[1], std::vector<float>(10, 2.0F)) << "a failed step leaves the gradients alone";
  step(reducer);
}

TEST_F(ReducerTest, AGradientThatIsMarkedTwiceIsRefusedAndTheStepContinues) {
  Reducer reducer = make();
  reducer.prepare_for_backward();
  reducer.mark_ready(2);
  const Error error = test::thrown_by([&] { reducer.mark_ready(2); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("'layer2'"));
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
  const Error error = test::thrown_by([&] { make(); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_EQ(error.ranks(), std::vector<int>{1});
  EXPECT_THAT(error.cause(),
              HasSubstr("parameter 1 differs: rank 0 has 'layer1' float32[10], rank 1 has 'layer9' float32[10]"));
}

// The other rank's description has a different text in place of the fault, or of a buffer.
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
  const Error error = test::thrown_by([&] { make(shared); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.ranks(), (std::vector{0, 1}));
  EXPECT_THAT(error.cause(), HasSubstr("on rank 0, the gradients of 'layer0' and 'layer1' share memory"));
  EXPECT_THAT(error.cause(), HasSubstr("on rank 1, the gradients of 'layer9' and 'layer1' share memory"));
  EXPECT_EQ(error.hint(), "give each parameter a gradient of its own");

  other_rank_has("mean float32[3]", "mean float32[5]");
  const Error other_buffer = test::thrown_by([&] { Reducer(parameters(), group_, {.buffers = {"mean float32[3]"}}); });
  EXPECT_EQ(other_buffer.code(), ErrorCode::mismatch);
  EXPECT_THAT(other_buffer.cause(),
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

// What a Reducer exchanges besides full buckets of the gradients' own type: other types, rows, delayed parameters; and
// how ranks learn that a hook failed.

namespace {

class Exchange : public ReducerTest {
 protected:
  Exchange() {
    control_->effect = [&](const ddp::Operation& operation) {
      if (operation.kind == OperationKind::all_reduce) {
        const std::lock_guard lock(mutex_);
        sent_.push_back(operation.dtype);
      }
      if (operation.kind == OperationKind::all_reduce && operation.dtype == DType::bfloat16) {
        auto* const values = static_cast<BFloat16*>(operation.output.data());
        for (std::size_t i = 0; i < operation.count; ++i) values[i] = to_bfloat16(2 * to_float(values[i]));
      }
      twin(operation);
    };
  }
  /// The types sent, once there are @p count operations, or at a deadline: another thread may be sending.
  std::vector<DType> sent(std::size_t count) {
    for (const Deadline limit = soon();; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      if (sent_.size() >= count || limit.expired()) return sent_;
    }
  }
  void forget_sent() {
    const std::lock_guard lock(mutex_);
    sent_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<DType> sent_;
};

TEST_F(Exchange, GradientsAreReducedInTheGivenTypeAndRoundedOnce) {
  constexpr float kFine = 1.0F + 1.0F / 1024;  // bfloat16 has 8 bits of precision
  for (const bool view : {false, true}) {
    for (auto& gradient : gradients_) gradient.assign(10, kFine);
    std::vector<Parameter> list = parameters();
    if (view) {
      for (Parameter& parameter : list) parameter.gradient = {};
    }
    Reducer reducer(list, group_,
                    {.bucket_cap_bytes = 40, .gradient_as_bucket_view = view, .reduce_dtype = DType::bfloat16});
    forget_sent();
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 2, 1, 0}) {
      if (view) std::ranges::fill(floats(reducer.bucket_view(index)), kFine);
      reducer.mark_ready(index);
    }
    EXPECT_EQ(reducer.bucket_view(3).dtype(), view ? DType::float32 : DType::bfloat16) << "views are computed in";
    reducer.finalize();
    EXPECT_THAT(sent(5), ElementsAre(DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::int32));
    for (std::size_t i = 0; i < 4; ++i) {
      const std::span<float> average = view ? floats(reducer.bucket_view(i)) : std::span<float>{gradients_[i]};
      EXPECT_THAT(average, testing::Each(1.0F)) << "the mean of two equal ones, rounded";
    }
  }
}

TEST_F(Exchange, ShortGradientsAreAddedInALongerType) {
  std::vector<BFloat16> value(10);
  std::vector<BFloat16> gradient(10, to_bfloat16(1.0F));
  std::vector<double> other_value(3);
  std::vector<double> other(3, 1.0);
  Reducer reducer({{.name = "short", .value = value, .gradient = gradient},
                   {.name = "double", .value = other_value, .gradient = other}},
                  group_, {.reduce_dtype = DType::float32});
  float seen = 0;
  control_->effect = [&](const ddp::Operation& operation) {
    twin(operation);
    if (operation.dtype != DType::float32) return;
    auto* const values = static_cast<float*>(operation.output.data());
    seen = values[0];
    values[0] += 1.0F / 256;  // bfloat16 would have lost it
    values[0] -= 1.0F / 256;
  };
  step(reducer, {1, 0});
  EXPECT_EQ(seen, 1.0F) << "half and half, in float32";
  EXPECT_EQ(to_float(gradient[0]), 1.0F);
}

TEST_F(Exchange, TypesThatCannotBeReducedInAreRefused) {
  std::vector<Half> value(10);
  EXPECT_THAT(cause_of([&] { Reducer(parameters(), group_, {.reduce_dtype = DType::int8}); }),
              HasSubstr("int8 is not a type to reduce in"));
  EXPECT_THAT(cause_of([&] { Reducer({{.name = "half", .value = value}}, group_, {.reduce_dtype = DType::bfloat16}); }),
              HasSubstr("'half' is float16, which cannot be reduced in bfloat16"));
}

/// An embedding of 6 rows of 2, between dense parameters.
class SparseExchange : public Exchange {
 protected:
  std::vector<Parameter> list() {
    std::vector<Parameter> all = parameters();
    all[1] = {.name = "embedding", .value = {table_.data(), DType::float32, {6, 2}}, .sparse_gradient = true};
    return all;
  }
  SparseGradient gradient(std::vector<std::int64_t>& rows, std::vector<float>& values) {
    return {.rows = rows, .values = {values.data(), DType::float32, {static_cast<std::int64_t>(rows.size()), 2}}};
  }
  void mark_all(Reducer& reducer, const SparseGradient& sparse) {
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 2, 0}) reducer.mark_ready(index);
    reducer.mark_ready(1, sparse);
  }
  static std::vector<std::int64_t> rows_of(const SparseGradient& average) {
    const auto* const rows = static_cast<const std::int64_t*>(average.rows.data());
    return {rows, rows + average.rows.numel()};
  }
  std::vector<float> table_ = std::vector<float>(12);
};

TEST_F(SparseExchange, RowsOfAllRanksAreAddedAndSorted) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40, .rebuild_buckets = true});
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second with rebuilt buckets
    std::vector<std::int64_t> rows{5, 1, 5};
    std::vector<float> values{1, 2, 3, 4, 10, 20};
    mark_all(reducer, gradient(rows, values));
    reducer.finalize();
    const SparseGradient average = reducer.sparse_average(1);  // the other rank has the same
    EXPECT_EQ(rows_of(average), (std::vector<std::int64_t>{1, 5}));
    EXPECT_THAT(floats(average.values), ElementsAre(3, 4, 11, 22));
    EXPECT_EQ(average.values.description(), "float32[2, 2]");
    EXPECT_EQ(gradients_[3], std::vector<float>(10, 4.0F)) << "beside dense ones";
    EXPECT_EQ(reducer.buckets().size(), 3U);
  }
}

TEST_F(SparseExchange, RanksMayHaveDifferentNumbersOfRows) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40});
  control_->effect = [](const ddp::Operation& operation) {
    auto* const output = static_cast<std::byte*>(operation.output.data());
    const std::size_t own = operation.input.size_bytes();
    if (operation.kind == OperationKind::all_gather) {
      const std::array<std::int64_t, 2> counts{2, 1};
      std::memcpy(output, counts.data(), sizeof(counts));
    } else if (operation.kind == OperationKind::all_gather_v) {
      const std::int64_t row = 4;
      const std::array<float, 2> values{8, 9};
      std::memcpy(output, operation.input.data(), own);
      const bool are_rows = operation.dtype == DType::int64;
      std::memcpy(output + own, are_rows ? static_cast<const void*>(&row) : values.data(), 8);
    } else {
      twin(operation);
    }
  };
  std::vector<std::int64_t> rows{4, 0};
  std::vector<float> values{2, 4, 6, 8};
  mark_all(reducer, gradient(rows, values));
  reducer.finalize();
  EXPECT_EQ(rows_of(reducer.sparse_average(1)), (std::vector<std::int64_t>{0, 4}));
  EXPECT_THAT(floats(reducer.sparse_average(1).values), ElementsAre(3, 4, 9, 11));
}

TEST_F(SparseExchange, AccumulatedRowsCountAndUnusedOnesAreNone) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40, .find_unused_parameters = true});
  std::vector<std::int64_t> rows{2};
  std::vector<float> values{1, 2};
  {
    const auto local = reducer.no_sync();
    mark_all(reducer, gradient(rows, values));
    reducer.finalize();
  }
  const auto without = [&] {
    reducer.prepare_for_backward(std::vector<std::size_t>{1});
    for (const std::size_t index : {3, 2, 0}) reducer.mark_ready(index);
    reducer.finalize();
  };
  without();
  EXPECT_EQ(rows_of(reducer.sparse_average(1)), std::vector<std::int64_t>{2}) << "of the step before";
  EXPECT_TRUE(reducer.used(1));
  without();
  EXPECT_TRUE(rows_of(reducer.sparse_average(1)).empty());
  EXPECT_FALSE(reducer.used(1));
  reducer.place_gradient(1, gradient(rows, values));
  without();
  EXPECT_EQ(rows_of(reducer.sparse_average(1)), std::vector<std::int64_t>{2}) << "placed, not marked";
}

TEST_F(SparseExchange, AllRanksThrowWhereOneHasRowsThatAreNone) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40});
  control_->effect = [](const ddp::Operation& operation) {
    twin(operation);
    // what a rank sends instead of a count after finding such rows on its device
    if (operation.kind == OperationKind::all_gather) static_cast<std::int64_t*>(operation.output.data())[1] = -1;
  };
  mark_all(reducer, {});
  const Error error = test::thrown_by([&] { reducer.finalize(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.ranks(), ElementsAre(1));
  EXPECT_THAT(error.cause(), HasSubstr("other ranks have rows that their parameters do not have"));
  expect_broken(reducer);
}

TEST_F(SparseExchange, ParametersWithoutRowsAreRefused) {
  const auto refused = [&](const std::function<void(Parameter&)>& change) {
    std::vector<Parameter> all = list();
    change(all[1]);
    return cause_of([&] { Reducer(all, group_, {}); });
  };
  EXPECT_THAT(refused([&](Parameter& it) {
                it.value = {table_.data(), DType::float32, {}};
              }),
              HasSubstr("but no dimensions"));
  EXPECT_THAT(refused([&](Parameter& it) { it.strides = {1, 6}; }), HasSubstr("do not lie one after the other"));
  EXPECT_THAT(refused([&](Parameter& it) { it.gradient = it.value; }), HasSubstr("memory for a dense one"));
}

TEST_F(SparseExchange, RowsOfAStepThatFailedDoNotCount) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40, .find_unused_parameters = true});
  std::vector<std::int64_t> rows{2};
  std::vector<float> values{1, 2};
  mark_all(reducer, gradient(rows, values));
  reducer.change_group(group_);
  reducer.prepare_for_backward();
  for (const std::size_t index : {3, 2, 0}) reducer.mark_ready(index);
  reducer.finalize();
  EXPECT_TRUE(rows_of(reducer.sparse_average(1)).empty());
}

TEST_F(SparseExchange, WhatIsNoRowOfTheParameterIsRefused) {
  Reducer reducer(list(), group_, {.bucket_cap_bytes = 40});
  std::vector<std::int64_t> rows{6};
  std::vector<float> values{1, 2};
  reducer.prepare_for_backward();
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, gradient(rows, values)); }), HasSubstr("there is no row 6"));
  rows = {-1};
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, gradient(rows, values)); }), HasSubstr("there is no row -1"));
  const Device device{.type = DeviceType::cuda, .index = 0};
  SparseGradient there = gradient(rows, values);
  there.rows = {rows.data(), DType::int64, {1}, device};
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, there); }), HasSubstr("on another device than its parameter"));
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, gradient(rows, values), Stream{.device = device}); }),
              HasSubstr("there is no row -1"));
  there = gradient(rows, values);
  there.rows = {rows.data(), DType::float64, {1}};
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, there); }), HasSubstr("its rows are float64[1]"));
  rows = {1};
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, gradient(rows, values), Stream{.device = device}); }),
              HasSubstr("its producer is a stream of another device"));
  rows = {1, 2};
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, SparseGradient{.rows = rows, .values = values}); }),
              HasSubstr("its values are float32[2] of 2 rows"));
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1, TensorView{values}); }), HasSubstr("it is dense"));
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(0, SparseGradient{}); }), HasSubstr("it is sparse"));
  EXPECT_THAT(cause_of([&] { reducer.bucket_view(1); }), HasSubstr("it is dense"));
  for (const std::size_t index : {3, 2, 0}) reducer.mark_ready(index);
  EXPECT_THAT(cause_of([&] { reducer.finalize(); }), HasSubstr("1 'embedding'")) << "missing";
  EXPECT_THAT(cause_of([&] { Reducer(list(), group_, {.comm_hook = exact_average_hook()}); }),
              HasSubstr("'embedding' has sparse_gradient, but the hook"));
}

TEST_F(Exchange, DelayedParametersShareTheLastBucket) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .delayed = {3, 1}});
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(2), ElementsAre(0), ElementsAre(1, 3)));
  for (const std::size_t calls : {0, 1}) {  // the second with buckets in the order of arrival
    forget_sent();
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 1, 0}) reducer.mark_ready(index);
    EXPECT_EQ(sent(calls).size(), calls) << "delayed ones do not go first";
    reducer.mark_ready(2);
    reducer.finalize();
    EXPECT_EQ(sent(4).size(), 4U) << "three buckets and the report";
  }
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(3, 1)));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(gradients_[i], std::vector<float>(10, static_cast<float>(i + 1)));
  EXPECT_THAT(cause_of([&] { Reducer(parameters(), group_, {.delayed = {4}}); }),
              HasSubstr("delayed names parameter 4"));
}

TEST_F(Exchange, DelayedParametersGoBehindTheBucketOfOne) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .delayed = {2, 3}, .delayed_behind = 1});
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(1), ElementsAre(2, 3), ElementsAre(0)));
  for (int step = 0; step < 2; ++step) {
    forget_sent();
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 2}) reducer.mark_ready(index);
    EXPECT_TRUE(sent(0).empty());
    reducer.mark_ready(1);
    EXPECT_EQ(sent(2).size(), 2U) << "not those that are computed later";
    reducer.mark_ready(0);
    reducer.finalize();
  }
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(1), ElementsAre(3, 2), ElementsAre(0))) << "rebuilt";
  Reducer without_bucket(parameters(), group_, {.bucket_cap_bytes = 40, .delayed = {2, 3}, .delayed_behind = 3});
  EXPECT_THAT(without_bucket.buckets(), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(2, 3)));
  EXPECT_THAT(cause_of([&] { Reducer(parameters(), group_, {.delayed_behind = 4}); }),
              HasSubstr("delayed_behind names parameter 4"));
}

class ThrowingHook final : public CommHook {
 public:
  std::string name() const override { return "throwing"; }
  BucketExchange start(const GradientBucket&, ProcessGroup&) override { throw std::runtime_error("out of patience"); }
};

TEST_F(Exchange, AHookThatThrowsEndsTheGroupForAll) {
  Reducer reducer(parameters(), group_, {.comm_hook = std::make_shared<ThrowingHook>()});
  EXPECT_THROW(step(reducer), std::runtime_error);
  const Error error = test::thrown_by([&] { group_.barrier().wait(); });
  EXPECT_EQ(error.code(), ErrorCode::aborted);
  EXPECT_EQ(error.cause(), "it failed on rank 0: out of patience");
}

}  // namespace

}  // namespace ddp
