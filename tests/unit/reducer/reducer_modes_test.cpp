// What a Reducer does besides averaging every parameter's gradient: views, unused and shared parameters, static graphs,
// hooks, memory.
#include <ddp/broadcast_coalesced.hpp>

#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

class ReducerModes : public ReducerTest {
 protected:
  Reducer make_with(ReducerOptions options, std::vector<Parameter> list = {}) {
    if (options.bucket_caps_bytes.empty()) options.bucket_cap_bytes = 40;
    return Reducer(list.empty() ? parameters() : std::move(list), group_, std::move(options));
  }
  std::vector<Parameter> without_gradients() {
    auto list = parameters();
    for (Parameter& parameter : list) parameter.gradient = {};
    return list;
  }
  static void mark(Reducer& reducer, const std::vector<std::size_t>& order) {
    for (const std::size_t index : order) reducer.mark_ready(index);
  }
  /// How many all_reduces have begun; waits a moment for @p expected ones.
  std::size_t launches(std::size_t expected) const {
    for (const Deadline limit = soon(); launched().size() < expected && !limit.expired();) std::this_thread::yield();
    return launched().size();
  }
};

TEST_F(ReducerModes, ViewsAreTheBucketsMemoryAndMoveWithIt) {
  std::vector<const void*> sent;
  control_->effect = [&](const ddp::Operation& operation) {
    if (operation.kind == OperationKind::all_reduce) sent.push_back(operation.output.data());
    twin(operation);
  };
  Reducer reducer = make_with({.gradient_as_bucket_view = true}, without_gradients());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(floats(reducer.bucket_view(i)), Each(0.0F));
    std::ranges::fill(floats(reducer.bucket_view(i)), static_cast<float>(i + 1));
  }
  step(reducer, {1, 3, 0, 2});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(floats(reducer.bucket_view(i)), Each(static_cast<float>(i + 1)));
    EXPECT_EQ(std::ranges::count(sent, reducer.bucket_view(i).data()), 1) << "it was copied";
  }
  reducer.prepare_for_backward();
  EXPECT_THAT(reducer.ready_order(), ElementsAre(1, 3, 0, 2));
  EXPECT_THAT(floats(reducer.bucket_view(2)), Each(3.0F)) << "accumulated gradients move along";
  mark(reducer, {3, 2, 1});
  std::vector<float> own(10, 8.0F);
  reducer.mark_ready(0, own);  // a framework replaced the gradient
  reducer.finalize();
  EXPECT_THAT(floats(reducer.bucket_view(0)), Each(8.0F));
  EXPECT_THAT(own, Each(8.0F));
  EXPECT_THAT(cause_of([&] { make_with({.gradient_as_bucket_view = true}); }), HasSubstr("has memory of its own"));
}

TEST_F(ReducerModes, WithoutSynchronizationNothingIsExchanged) {
  Reducer reducer = make_with({});
  {
    const auto outer = reducer.no_sync();
    const auto inner = reducer.no_sync();
    reducer.prepare_for_backward();
    mark(reducer, {0, 1});  // not all: no rank waits for the rest
    EXPECT_THAT(cause_of([&] { reducer.mark_ready(1); }), HasSubstr("before in this step"));
    reducer.finalize();
    reducer.broadcast_buffers(std::array{TensorView{values_[0]}});
  }
  EXPECT_EQ(launches(0), 0U);
  EXPECT_FALSE(control_->saw("begin broadcast 3")) << "buffers rest after a step without synchronization";
  EXPECT_EQ(reducer.stats().iteration, 0U);
  step(reducer);
  EXPECT_EQ(launches(5), 5U);
  reducer.broadcast_buffers(std::array{TensorView{values_[0]}});
  EXPECT_TRUE(control_->saw("end broadcast 8"));
}

TEST_F(ReducerModes, UnusedParametersCountAsTheyAreAndStayIfNobodyUsesThem) {
  Reducer reducer = make_with({.find_unused_parameters = true});
  EXPECT_THAT(cause_of([&] { reducer.prepare_for_backward(std::array<std::size_t, 1>{7}); }),
              HasSubstr("no parameter 7"));
  control_->effect = [&](const ddp::Operation& operation) {
    if (operation.dtype == DType::int32) {  // the other rank has used all but the last
      auto* const sums = static_cast<std::int32_t*>(operation.output.data());
      EXPECT_THAT((std::span{sums, 5}), ElementsAre(0, 1, 1, 0, 0));
      for (std::size_t i = 1; i < 4; ++i) ++sums[i];
      return;
    }
    for (float& value : floats(operation.output)) value += 5;
  };
  reducer.prepare_for_backward(std::array<std::size_t, 1>{3});
  EXPECT_EQ(launches(1), 1U) << "what is known as unused does not hold up the others";
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(3); }), HasSubstr("before in this step"));
  mark(reducer, {1, 0});  // 2 is just never marked
  reducer.finalize();
  EXPECT_THAT(gradients_[2], Each(3.0F / 2 + 5));
  EXPECT_THAT(gradients_[0], Each(1.0F / 2 + 5));
  EXPECT_THAT(gradients_[3], Each(4.0F));
  EXPECT_TRUE(reducer.used(2));
  EXPECT_FALSE(reducer.used(3));
  control_->effect = twin;
  step(reducer);
  EXPECT_TRUE(reducer.used(3));
  EXPECT_THAT(gradients_[3], Each(4.0F));
  EXPECT_THAT(reducer.ready_order(), IsEmpty());
  Reducer strict = make_with({});
  EXPECT_THAT(cause_of([&] { strict.prepare_for_backward(std::array<std::size_t, 1>{3}); }), HasSubstr("as unused"));
}

TEST_F(ReducerModes, AParameterThatWasOnlyUsedInALocalStepIsAveraged) {
  Reducer reducer = make_with({.find_unused_parameters = true});
  std::vector<float> elsewhere(10, 6.0F);
  {
    const auto local = reducer.no_sync();
    reducer.prepare_for_backward();
    reducer.mark_ready(3, elsewhere);
    reducer.finalize();
  }
  step(reducer, {2, 1, 0});
  EXPECT_TRUE(reducer.used(3));
  EXPECT_THAT(elsewhere, Each(6.0F)) << "(6 + 6) / 2, where it was accumulated";
  step(reducer, {2, 1, 0});
  EXPECT_FALSE(reducer.used(3));
}

TEST_F(ReducerModes, ASharedParameterIsReadyWhenAllItsNamesAre) {
  auto list = parameters();
  list.push_back({.name = "tied", .value = values_[3], .gradient = gradients_[3]});
  Reducer reducer = make_with({}, list);
  EXPECT_THAT(reducer.buckets(), SizeIs(4));
  reducer.prepare_for_backward();
  reducer.mark_ready(4);
  EXPECT_EQ(launches(0), 0U);
  reducer.mark_ready(3);
  EXPECT_EQ(launches(1), 1U);
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(4); }), HasSubstr("2 times before"));
  mark(reducer, {2, 1, 0});
  reducer.finalize();
  EXPECT_THAT(gradients_[3], Each(4.0F));
  reducer.prepare_for_backward();
  mark(reducer, {4, 2, 1, 0});
  EXPECT_THAT(cause_of([&] { reducer.finalize(); }), HasSubstr("'layer3'"));

  list.back().gradient = gradients_[2];
  EXPECT_THAT(cause_of([&] { make_with({}, list); }),
              HasSubstr("'layer3' and 'tied' share the memory of their values"));
  list = parameters();
  list[1].gradient = list[0].gradient;
  EXPECT_THAT(cause_of([&] { make_with({}, list); }), HasSubstr("'layer0' and 'layer1' share memory"));
}

TEST_F(ReducerModes, AStaticGraphIsCountedInItsFirstStep) {
  Reducer reducer = make_with({.rebuild_buckets = false, .static_graph = true});
  reducer.prepare_for_backward();
  mark(reducer, {2, 2, 1, 0});
  EXPECT_EQ(launches(0), 0U) << "how often they come is not known yet";
  reducer.finalize();
  EXPECT_EQ(launches(5), 5U);
  EXPECT_FALSE(reducer.used(3));
  EXPECT_THAT(gradients_[2], Each(3.0F));

  reducer.prepare_for_backward();
  EXPECT_EQ(launches(6), 6U) << "3 never comes";
  reducer.mark_ready(2);
  EXPECT_EQ(launches(6), 6U);
  reducer.mark_ready(2);
  EXPECT_EQ(launches(7), 7U);
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(3); }), HasSubstr("more often than in the first step: 0"));
  mark(reducer, {1});
  const Error error = test::thrown_by([&] { reducer.finalize(); });
  EXPECT_THAT(error.cause(), HasSubstr("1 of 4 parameters were not marked ready: 0 'layer0'"));
  EXPECT_THAT(error.hint(), HasSubstr("static_graph"));
}

TEST_F(ReducerModes, ABucketOfUnusedParametersIsSkippedIfAllRanksAgree) {
  EXPECT_THAT(cause_of([&] { make_with({.skip_all_reduce_unused = true}); }),
              HasSubstr("without find_unused_parameters"));
  Reducer reducer = make_with({.find_unused_parameters = true, .skip_all_reduce_unused = true});
  for (const std::size_t expected : {5U, 9U}) {
    reducer.prepare_for_backward(std::array<std::size_t, 1>{3});
    mark(reducer, {2, 1, 0});
    reducer.finalize();
    EXPECT_EQ(launches(expected), expected) << "all buckets and the report of the first step, then three buckets";
  }
  EXPECT_EQ(reducer.log().num_buckets_reduced, 3);
  EXPECT_THAT(gradients_[3], Each(4.0F));
  control_->effect = [](const ddp::Operation& operation) {
    twin(operation);
    auto* const other = static_cast<char*>(operation.output.data()) + operation.input.size_bytes();
    if (operation.kind == OperationKind::all_gather && operation.count == 1) *other = static_cast<char>(*other + 1);
    if (operation.kind == OperationKind::all_gather_v) other[3] = 0;
  };
  const Error error = test::thrown_by([&] { reducer.prepare_for_backward(std::array<std::size_t, 1>{3}); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.cause(), HasSubstr("parameter 3 'layer3' is unused on rank 0, used on rank 1"));
}

TEST_F(ReducerModes, GradientsMayComeInOtherMemory) {
  Reducer reducer = make_with({}, without_gradients());
  reducer.prepare_for_backward();
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(0); }), HasSubstr("it has no memory"));
  std::vector<double> doubles(10);
  std::vector<float> few(9);
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(0, doubles); }), HasSubstr("expected float32[10], got float64[10]"));
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(0, few); }), HasSubstr("got float32[9]"));
  for (std::size_t i = 0; i < 4; ++i) reducer.mark_ready(i, gradients_[i]);
  for (auto& gradient : gradients_) std::ranges::fill(gradient, 0.0F);
  reducer.finalize();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(gradients_[i], Each(static_cast<float>(i + 1)));
    EXPECT_THAT(floats(reducer.bucket_view(i)), Each(static_cast<float>(i + 1)));
  }
}

TEST_F(ReducerModes, AKnownOrderAndLimitsGiveTheFinalBucketsAtOnce) {
  Reducer reducer = make_with({.bucket_caps_bytes = {40, 80}, .ready_order = {2, 0, 3, 1}});
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(2), ElementsAre(0, 3), ElementsAre(1)));
  step(reducer);
  step(reducer);
  EXPECT_EQ(launches(8), 8U);
  EXPECT_FALSE(control_->saw("begin broadcast 7")) << "nothing to rebuild";
  EXPECT_THAT(cause_of([&] { make_with({.ready_order = {4}}); }), HasSubstr("names parameter 4 of 4"));
}

TEST_F(ReducerModes, OnlyParametersThatRequireAGradientHaveOne) {
  auto list = parameters();
  list[1].requires_gradient = false;
  Reducer reducer = make_with({}, list);
  EXPECT_THAT(reducer.buckets(), ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(0)));
  reducer.prepare_for_backward();
  EXPECT_THAT(cause_of([&] { reducer.mark_ready(1); }), HasSubstr("'layer1' requires no gradient"));
  mark(reducer, {3, 2, 0});
  reducer.finalize();
  for (Parameter& parameter : list) parameter.requires_gradient = false;
  EXPECT_THAT(cause_of([&] { make_with({}, list); }), HasSubstr("none of 4 parameters requires"));
}

TEST_F(ReducerModes, BucketsComeFromTheAllocator) {
  std::vector<std::size_t> sizes;
  alignas(64) std::array<std::byte, 512> memory{};
  std::size_t used = 0;
  ReducerOptions options;
  options.allocator = [&](std::size_t bytes, Device) {
    sizes.push_back(bytes);
    return std::shared_ptr<void>(std::shared_ptr<void>{}, memory.data() + 64 * used++);
  };
  Reducer reducer = make_with(options);
  EXPECT_THAT(sizes, ElementsAre(40, 40, 40, 40));
  EXPECT_EQ(reducer.bucket_view(3).data(), memory.data());
  options.allocator = [&](std::size_t, Device) { return std::shared_ptr<void>(std::shared_ptr<void>{}, &memory[1]); };
  EXPECT_THAT(cause_of([&] { make_with(options); }), HasSubstr("not aligned"));
  options.allocator = [](std::size_t, Device) { return std::shared_ptr<void>{}; };
  EXPECT_THAT(cause_of([&] { make_with(options); }), HasSubstr("returned null"));
}

/// Records its calls, and fails on request.
class NotingHook final : public CommHook {
 public:
  std::string name() const override { return "noting"; }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& /*unused*/) override {
    buckets.push_back(bucket);
    if (buckets.size() == fail_at) throw std::runtime_error("the hook is broken");
    return [this, bucket] {
      ended.push_back(bucket.index);
      static_cast<float*>(bucket.buffer.data())[0] = 100;
    };
  }
  std::vector<GradientBucket> buckets;
  std::vector<std::size_t> ended;
  std::size_t fail_at = 0;
};

TEST_F(ReducerModes, AHookGetsUndividedBucketsInOrder) {
  const auto hook = std::make_shared<NotingHook>();
  Reducer reducer = make_with({.bucket_caps_bytes = {80}, .rebuild_buckets = false, .comm_hook = hook});
  step(reducer, {0, 1, 2, 3});
  ASSERT_THAT(hook->buckets, SizeIs(2));
  EXPECT_THAT(hook->ended, ElementsAre(0, 1));
  EXPECT_THAT(hook->buckets[0].parameters, ElementsAre(2, 3));
  EXPECT_FALSE(hook->buckets[0].is_last);
  EXPECT_TRUE(hook->buckets[1].is_last);
  EXPECT_EQ(hook->buckets[0].gradients[1].data(), reducer.bucket_view(3).data());
  EXPECT_FLOAT_EQ(gradients_[2][0], 100);
  EXPECT_FLOAT_EQ(gradients_[2][1], 3) << "undivided, and not summed";
  EXPECT_EQ(launches(1), 1U) << "the report";

  hook->fail_at = 3;
  reducer.prepare_for_backward();
  reducer.mark_ready(3);
  EXPECT_THROW(reducer.mark_ready(2), std::runtime_error);
  EXPECT_THROW(mark(reducer, {0, 1}), std::runtime_error);
  EXPECT_THROW(reducer.finalize(), std::runtime_error);
  EXPECT_THAT(hook->buckets, SizeIs(3)) << "it was called again";
  expect_broken(reducer);
  EXPECT_THAT(cause_of([] { compress_hook(DType::int32); }), HasSubstr("int32 is not a type for the wire"));
}

TEST_F(ReducerModes, ExactAveragesCountEachLeaf) {
  Reducer reducer = make_with({.comm_hook = exact_average_hook()});
  {
    const auto local = reducer.no_sync();
    step(reducer);  // 1, 2, 3, 4
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(gradients_[i], Each(0.0F)) << "the hook has them";
  gradients_[0] = {1e6F, -1e6F, 0x1p-40F, -0x1p-40F, 0x1p-70F, -0x1p-70F, 0.1F, -0.1F, 3, 5};
  gradients_[1][3] = std::numeric_limits<float>::infinity();
  gradients_[2][0] = 0x1p23F;
  step(reducer);
  // both leaves of both ranks: the mean of the old and new values
  EXPECT_THAT(gradients_[0],
              ElementsAre((1e6F + 1) / 2, (1 - 1e6F) / 2, (1 + 0x1p-40) / 2, (1 - 0x1p-40) / 2, 0.5F, 0.5F,
                          static_cast<float>((1.0 + 0.1F) / 2), static_cast<float>((1.0 - 0.1F) / 2), 2, 3));
  EXPECT_TRUE(std::ranges::all_of(gradients_[1], [](float each) { return std::isnan(each); }));
  EXPECT_TRUE(std::ranges::all_of(gradients_[2], [](float each) { return std::isnan(each); }));
  EXPECT_THAT(gradients_[3], Each(2.0F));
  for (auto& gradient : gradients_) std::ranges::fill(gradient, 0x1p-60F);
  step(reducer);
  for (const auto& gradient : gradients_) EXPECT_THAT(gradient, Each(0x1p-60F)) << "nothing is left of the last step";

  std::vector<std::int32_t> whole(10);
  Reducer integers =
      make_with({.comm_hook = exact_average_hook()}, {{.name = "whole", .value = whole, .gradient = whole}});
  integers.prepare_for_backward();
  EXPECT_THAT(cause_of([&] { integers.mark_ready(0); }), HasSubstr("int32 is not a floating-point type"));
}

TEST_F(ReducerModes, AnotherGroupGoesOnAfterOneHasFailed) {
  Reducer reducer = make_with({});
  step(reducer, {0, 1, 2, 3});
  reducer.prepare_for_backward();
  EXPECT_THAT(reducer.buckets()[0], ElementsAre(0));
  control_->fail("all_reduce 9");
  reducer.mark_ready(0);
  await_failure();
  EXPECT_TRUE(error_of([&] { mark(reducer, {1, 2, 3}); }));
  EXPECT_TRUE(error_of([&] { reducer.finalize(); }));
  const auto control = std::make_shared<test::BackendControl>();
  control->effect = twin;
  reducer.change_group(ProcessGroup{GroupEngine::make(
      collectives::GroupMembers{
          .name = "other", .rank = 0, .global_ranks = {0, 2}, .endpoints = {{}, {}}, .channel = nullptr},
      test::fake_backends(control), collectives::ConnectOptions{}, std::chrono::seconds(60))});
  EXPECT_THAT(reducer.buckets()[0], ElementsAre(3)) << "what ranks of different groups have in common";
  for (std::size_t i = 0; i < 4; ++i) std::ranges::fill(gradients_[i], static_cast<float>(i));
  step(reducer, {0, 1, 2, 3});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(gradients_[i], Each(static_cast<float>(i)));
  step(reducer);
  EXPECT_THAT(reducer.buckets()[0], ElementsAre(0)) << "rebuilt once more";
}

TEST_F(ReducerModes, BuffersTravelTogetherUnlessTheyAreLarge) {
  std::vector<std::size_t> messages;
  control_->effect = [&](const ddp::Operation& operation) { messages.push_back(operation.count); };
  std::vector<std::uint8_t> small(3, 1);
  std::vector<float> none;
  std::vector<std::uint8_t> large(std::size_t{26} * 1024 * 1024);
  const std::array tensors{TensorView{small}, TensorView{none}, TensorView{small}, TensorView{large},
                           TensorView{small}};
  broadcast_coalesced(group_, tensors);
  EXPECT_THAT(messages, ElementsAre(6, large.size(), 3));
  EXPECT_THAT(cause_of([&] { broadcast_coalesced(group_, tensors, 2); }), HasSubstr("rank 2 is not one of 2"));

  control_->effect = [](const ddp::Operation&) {};
  EXPECT_EQ(highest_active_rank(group_, true), 0);
  EXPECT_THAT(cause_of([&] { highest_active_rank(group_, false); }), HasSubstr("no rank is active"));
  // what another rank sends reaches each tensor
  control_->effect = [&](const ddp::Operation& operation) {
    auto* const bytes = static_cast<std::uint8_t*>(operation.output.data());
    std::iota(bytes, bytes + operation.count, std::uint8_t{10});
  };
  std::array<std::vector<std::uint8_t>, 2> received{std::vector<std::uint8_t>(2), std::vector<std::uint8_t>(3)};
  broadcast_coalesced(group_, std::array{TensorView{received[0]}, TensorView{received[1]}}, 1);
  EXPECT_THAT(received[0], ElementsAre(10, 11));
  EXPECT_THAT(received[1], ElementsAre(12, 13, 14));
}

}  // namespace
}  // namespace ddp
