// What communication hooks send, refuse and forget. For what they compute see
// tests/multiproc/rank_program/comm_hooks.cpp.
#include <ddp/comm_hooks.hpp>
#include <ddp/model_averaging.hpp>

#include "reducer/bucket.hpp"
#include "reducer/bucket_set.hpp"
#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

/// One parameter, exchanged with a rank that has the same.
class CommHooks : public ReducerTest {
 protected:
  CommHooks() {
    control_->effect = [&](const ddp::Operation& operation) {
      if (operation.count > 1 || operation.dtype != DType::int32) {
        sent_.push_back(operation.input.numel() * size_of(operation.dtype));
      }
      twin(operation);
    };
  }
  Reducer make_for(std::shared_ptr<CommHook> hook, const TensorView& value, const TensorView& gradient) {
    Reducer reducer({{.name = "weight", .value = value, .gradient = gradient}}, group_, {.comm_hook = std::move(hook)});
    sent_.clear();
    return reducer;
  }
  static std::string cause_of(const std::function<void()>& call) {
    const auto error = error_of(call);
    return error ? error->cause() : "no error";
  }
  std::vector<std::size_t> sent_;  ///< bytes of each operation except the report
};

/// Records its calls.
class ToldHook final : public CommHook {
 public:
  std::string name() const override { return "told"; }
  BucketExchange start(const GradientBucket&, ProcessGroup&) override {
    if (fails) throw std::runtime_error("the hook is broken");
    return [] {};
  }
  void join_group(ProcessGroup&) override { events.emplace_back("join"); }
  void end_step(bool complete) noexcept override { events.emplace_back(complete ? "complete" : "failed"); }
  std::vector<std::string> events;
  bool fails = false;
};

/// Calls back while it starts exchanging the first bucket, as a function given to Work::on_finish may.
class CallingHook final : public CommHook {
 public:
  explicit CallingHook(std::function<void()> call) : call_(std::move(call)) {}
  std::string name() const override { return "calling"; }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup&) override {
    started.push_back(bucket.index);
    if (bucket.index == 0) call_();
    return [] {};
  }
  std::vector<std::size_t> started;

 private:
  std::function<void()> call_;
};

TEST_F(CommHooks, GradientsMayBeMarkedWhileABucketIsLaunched) {
  for (const bool by_another : {false, true}) {
    Reducer* known = nullptr;
    auto marked = std::make_shared<std::promise<void>>();
    const auto mark = [&known, marked] {
      known->mark_ready(2);
      marked->set_value();
    };
    const auto hook = std::make_shared<CallingHook>([&] {
      std::thread other;
      if (by_another) {
        other = std::thread(mark);
      } else {
        mark();
      }
      ASSERT_EQ(marked->get_future().wait_until(soon().when()), std::future_status::ready)
          << "marking waits for the end of the launch";
      if (other.joinable()) other.join();
    });
    Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .rebuild_buckets = false, .comm_hook = hook});
    known = &reducer;
    step(reducer, {3, 1, 0});
    EXPECT_THAT(hook->started, ElementsAre(0, 1, 2, 3));
  }
}

/// For their results on devices see tests/multiproc/nccl_rank_reducer.cpp.
TEST_F(CommHooks, AreRefusedOnDevicesBeforeTheFirstStep) {
  const Device device{.type = DeviceType::cuda, .index = 0};
  const TensorView value{values_[0].data(), DType::float32, {10}, device};
  EXPECT_THAT(cause_of([&] { make_for(std::make_shared<ToldHook>(), value, value); }),
              HasSubstr("where the hook 'told"));
  EXPECT_THAT(cause_of([&] { make_for(noop_hook(), value, value); }), HasSubstr("no backend of the group serves CUDA"));
}

/// A plugin's executor, which only copies.
class ForeignExecutor final : public TensorExecutor {
 public:
  std::optional<Stream> stream() const noexcept override { return std::nullopt; }
  void copy(std::span<const TensorCopy>, DType, DType, int) override {}
  Bytes read(const void*, std::size_t, Deadline) override { return {}; }
  void write(std::shared_ptr<const Bytes>, void*, Deadline) override {}
  void wait_for(const Work&) override {}
  void wait_for(const Moment&) override {}
  Moment now_in(const Stream&) override { return {}; }
  void hold_back(const Stream&) override {}
  void keep(std::shared_ptr<const void>) noexcept override {}
};

TEST_F(CommHooks, ThatComputeNeedAnExecutorWithKernels) {
  GradientBucket bucket;
  bucket.buffer = gradients_[0];
  bucket.parameters = {0};
  bucket.gradients = {bucket.buffer};
  bucket.executor = std::make_shared<ForeignExecutor>();
  bucket.allocate = [](std::size_t bytes) { return reducer::host_memory(bytes); };
  for (const auto& hook :
       {quantize_per_tensor_hook(), top_k_hook(0.5), power_sgd_hook({.start_iteration = 0}), exact_average_hook()}) {
    EXPECT_THAT(cause_of([&] { hook->start(bucket, group_); }), HasSubstr("does not run libddp's kernels"));
  }
}

/// In another group, which may have new ranks, all ranks allocate, since that may be collective.
TEST_F(CommHooks, TakeMemoryOnceInAGroup) {
  const PowerSgdOptions low{.start_iteration = 0, .min_compression_rate = 1};
  for (const auto& hook : {compress_hook(DType::float16), compress_wrapper(DType::bfloat16), quantize_per_tensor_hook(),
                           top_k_hook(0.5), power_sgd_hook(low), batched_power_sgd_hook(low),
                           compress_wrapper(DType::float16, power_sgd_hook(low)), exact_average_hook()}) {
    std::size_t allocated = 0;
    std::vector<float> gradient(120, 1.0F);
    GradientBucket bucket;
    bucket.buffer = {gradient.data(), DType::float32, {120}};
    bucket.parameters = {0};
    bucket.gradients = {{gradient.data(), DType::float32, {10, 12}}};
    bucket.executor = std::make_shared<reducer::HostExecutor>();
    bucket.allocate = [&](std::size_t bytes) {
      ++allocated;
      return reducer::host_memory(bytes);
    };
    const auto step = [&] {
      hook->start(bucket, group_)();
      hook->end_step(true);
    };
    hook->join_group(group_);
    step();
    const std::size_t in_a_group = allocated;
    EXPECT_GE(in_a_group, 1U) << hook->name();
    step();
    EXPECT_EQ(allocated, in_a_group) << hook->name();
    hook->join_group(group_);
    step();
    EXPECT_EQ(allocated, 2 * in_a_group) << hook->name();
  }
}

TEST_F(CommHooks, ExactAveragesHaveRoomForSoManyLeaves) {
  GradientBucket bucket;
  bucket.buffer = gradients_[0];
  bucket.parameters = {0};
  bucket.gradients = {bucket.buffer};
  bucket.executor = std::make_shared<reducer::HostExecutor>();
  bucket.allocate = [](std::size_t bytes) { return reducer::host_memory(bytes); };
  const auto hook = exact_average_hook();
  for (int most = 1; most < 1 << 18; ++most) hook->add_leaf(bucket);  // by each of two ranks, including the last
  hook->start(bucket, group_)();
  EXPECT_THAT(gradients_[0], Each(1.0F));
  for (int most = 0; most < 1 << 18; ++most) hook->add_leaf(bucket);
  EXPECT_THAT(cause_of([&] { hook->start(bucket, group_); }), HasSubstr("2 ranks have 262145 leaves each"));
}

TEST_F(CommHooks, ExactAveragesKeepLeavesInOtherBucketsAndGroups) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 80, .comm_hook = exact_average_hook()});
  const std::vector<std::size_t> order{0, 3, 1, 2};
  const auto take = [&](float value) {
    for (std::size_t i = 0; i < 4; ++i) std::ranges::fill(gradients_[i], value * static_cast<float>(i + 1));
    step(reducer, order);
  };
  const auto expect = [&](float value) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(gradients_[i], Each(value * static_cast<float>(i + 1)));
  };
  take(9);
  const auto alone = [&](float value) {
    const auto local = reducer.no_sync();
    take(value);
    expect(0);
  };
  alone(1);
  take(3);
  EXPECT_THAT(reducer.buckets()[0], ElementsAre(0, 3)) << "rebuilt";
  expect(2);
  alone(5);
  reducer.change_group(group_);
  reducer.change_group(group_);
  take(7);
  expect(6);
  take(8);
  expect(8);
  alone(1);
  EXPECT_TRUE(error_of([&] { step(reducer, {0}); })) << "a gradient is missing";
  take(4);
  expect(4);
}

/// What a hook failed to take is missing in its next bucket, which the other ranks wait for.
TEST_F(CommHooks, ThatFailInAStepOfNoSyncEndTheGroup) {
  class Leaves final : public CommHook {
   public:
    std::string name() const override { return "leaves"; }
    bool takes_leaves() const override { return true; }
    void add_leaf(const GradientBucket&) override { throw std::runtime_error("no room"); }
    BucketExchange start(const GradientBucket&, ProcessGroup&) override {
      return [] {};
    }
    void end_step(bool complete) noexcept override { failed = failed || !complete; }
    bool failed = false;
  };
  const auto hook = std::make_shared<Leaves>();
  Reducer reducer = make_for(hook, values_[0], gradients_[0]);
  {
    const auto local = reducer.no_sync();
    EXPECT_THROW(step(reducer, {0}), std::runtime_error);
  }
  EXPECT_TRUE(hook->failed);
  EXPECT_THAT(cause_of([&] { group_.barrier().wait(); }), HasSubstr("it failed on rank 0: no room"));
  expect_broken(reducer);
}

TEST_F(CommHooks, SendFewBytes) {
  const PowerSgdOptions two{.rank = 2, .start_iteration = 0, .min_compression_rate = 1};
  struct Case {
    std::shared_ptr<CommHook> hook;
    std::vector<std::int64_t> shape;
    std::vector<std::size_t> bytes;
  };
  const std::array cases{
      Case{power_sgd_hook(two), {24, 20}, {4 * 2 * 24, 4 * 2 * 20}},
      Case{power_sgd_hook(two), {480}, {4 * 480}},  // no matrix: averaged
      Case{power_sgd_hook({.rank = 2, .start_iteration = 0, .min_compression_rate = 6}), {24, 20}, {4 * 480}},
      Case{power_sgd_hook({.rank = 2, .start_iteration = 1}), {24, 20}, {4 * 480}},  // not yet
      Case{batched_power_sgd_hook(two), {470}, {4 * 2 * 22, 4 * 2 * 22}},
      Case{quantize_per_tensor_hook(), {1301}, {8 + 1304}},
      Case{quantize_per_channel_hook(), {1301}, {3 * 8 + 1304}},
      Case{top_k_hook(0.01), {1301}, {8 * 14}},
      Case{post_local_sgd_hook(0), {10}, {}},
      Case{exact_average_hook(), {10}, {16 * 10 + 8 + 8}},
      Case{noop_hook(), {10}, {}},
      Case{optimizer_hook([](std::size_t, const TensorView&) {}), {10}, {40}},
  };
  for (const Case& each : cases) {
    std::vector<float> value(1400);
    std::vector<float> gradient(1400);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = std::sin(static_cast<float>(i * i));
    Reducer reducer =
        make_for(each.hook, {value.data(), DType::float32, each.shape}, {gradient.data(), DType::float32, each.shape});
    step(reducer, {0});
    EXPECT_EQ(sent_, each.bytes) << each.hook->name();
  }
}

TEST_F(CommHooks, TakeHalfTypesAsFloats) {
  std::vector<BFloat16> value(100);
  std::vector<BFloat16> gradient(100);
  for (std::size_t i = 0; i < 100; ++i) gradient[i] = to_bfloat16(static_cast<float>(i) / 8);
  Reducer reducer = make_for(top_k_hook(0.5), value, gradient);
  step(reducer, {0});
  EXPECT_EQ(sent_, std::vector<std::size_t>{8 * 50});
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_FLOAT_EQ(to_float(gradient[i]), i < 50 ? 0 : static_cast<float>(i) / 8);
  }
  std::vector<double> doubles(10);
  std::vector<double> given(10, 2.0);
  Reducer plain = make_for(quantize_per_tensor_hook(), doubles, given);
  step(plain, {0});
  EXPECT_EQ(sent_, std::vector<std::size_t>{80}) << "averaged as they are";
}

TEST_F(CommHooks, GiveWhatTheyKeptToParametersThatNoRankUsesNow) {
  std::vector<float> value(2);
  std::vector<float> gradient{1, 4};
  Reducer reducer({{.name = "weight", .value = value, .gradient = gradient}}, group_,
                  {.find_unused_parameters = true, .write_unused = true, .comm_hook = top_k_hook(0.5)});
  step(reducer, {0});
  EXPECT_EQ(gradient, (std::vector<float>{0, 4}));
  std::ranges::fill(gradient, 0.0F);
  step(reducer, {});
  EXPECT_EQ(gradient, (std::vector<float>{1, 0}));
  EXPECT_TRUE(reducer.used(0));
}

TEST_F(CommHooks, RecoverFromGradientsThatAreNotFinite) {
  const std::array hooks{power_sgd_hook({.rank = 1, .start_iteration = 0, .min_compression_rate = 1}),
                         batched_power_sgd_hook({.rank = 1, .start_iteration = 0}), top_k_hook(0.2)};
  for (const auto& hook : hooks) {
    std::vector<float> value(64);
    std::vector<float> gradient(64, 1.0F);
    Reducer reducer = make_for(hook, {value.data(), DType::float32, {8, 8}}, {gradient.data(), DType::float32, {8, 8}});
    step(reducer, {0});
    for (int zeros = 0; zeros < 2; ++zeros) {
      std::ranges::fill(gradient, 0.0F);
      step(reducer, {0});
    }
    std::ranges::fill(gradient, 1.0F);
    step(reducer, {0});
    EXPECT_NEAR(std::accumulate(gradient.begin(), gradient.end(), 0.0F), 64, 52) << hook->name() << " is stuck at 0";
    std::ranges::fill(gradient, std::numeric_limits<float>::infinity());
    step(reducer, {0});
    EXPECT_TRUE(std::ranges::any_of(gradient, [](float each) { return !std::isfinite(each); })) << hook->name();
    for (int again = 0; again < 5; ++again) {
      std::ranges::fill(gradient, 1.0F);
      step(reducer, {0});
      EXPECT_TRUE(std::ranges::all_of(gradient, [](float each) { return std::isfinite(each); })) << hook->name();
    }
  }
}

TEST_F(CommHooks, AreToldHowStepsEnd) {
  const auto hook = std::make_shared<ToldHook>();
  {
    Reducer reducer = make_for(optimizer_hook([](std::size_t, const TensorView&) {}, hook), values_[0], gradients_[0]);
    step(reducer, {0});
    {
      const auto local = reducer.no_sync();
      step(reducer, {0});
    }
    EXPECT_THAT(hook->events, ElementsAre("join", "complete"));
    EXPECT_TRUE(error_of([&] { step(reducer, {}); })) << "a gradient is missing";
    EXPECT_THAT(hook->events, ElementsAre("join", "complete", "failed"));
    reducer.prepare_for_backward();
    reducer.change_group(group_);
    EXPECT_THAT(hook->events, ElementsAre("join", "complete", "failed", "failed", "join"));
    hook->fails = true;
    EXPECT_THROW(step(reducer, {0}), std::runtime_error);
    EXPECT_EQ(hook->events.size(), 5U) << "finalize may come yet";
  }
  EXPECT_EQ(hook->events.size(), 6U) << "a step that is left is a failed one";
  EXPECT_EQ(hook->events.back(), "failed");
}

TEST_F(CommHooks, ModelsAreAveragedInTheStepsThatAreDue) {
  const std::array tensors{TensorView{values_[0]}, TensorView{}};
  const auto averages = [&](auto& averager) {
    std::vector<std::uint64_t> due;
    for (int i = 0; i < 6; ++i) {
      sent_.clear();
      const std::uint64_t step = averager.step();
      averager.average_parameters(tensors);
      if (!sent_.empty()) due.push_back(step);
    }
    return due;
  };
  PeriodicModelAverager periodic(group_, 2, 1);
  EXPECT_THAT(averages(periodic), ElementsAre(1, 3, 5));
  using Level = HierarchicalModelAverager::Level;
  HierarchicalModelAverager hierarchical(group_, std::array<Level, 1>{{{3, 2}}}, 1);
  EXPECT_THAT(averages(hierarchical), ElementsAre(3));
}

TEST_F(CommHooks, RefuseWhatMakesNoSense) {
  EXPECT_THAT(cause_of([] { power_sgd_hook({.rank = 0}); }), HasSubstr("rank 0"));
  EXPECT_THAT(cause_of([] { batched_power_sgd_hook({.orthogonalization_epsilon = -1}); }), HasSubstr("epsilon -1"));
  EXPECT_THAT(cause_of([] { top_k_hook(0); }), HasSubstr("0 is not a fraction"));
  EXPECT_THAT(cause_of([] { top_k_hook(1.5); }), HasSubstr("1.5 is not a fraction"));
  EXPECT_THAT(cause_of([] { optimizer_hook([](std::size_t, const TensorView&) {}, exact_average_hook()); }),
              HasSubstr("takes the gradients of no_sync"));
  const auto with_unused = [&](std::shared_ptr<CommHook> hook) {
    return cause_of(
        [&] { Reducer(parameters(), group_, {.find_unused_parameters = true, .comm_hook = std::move(hook)}); });
  };
  for (const auto& hook :
       {power_sgd_hook(), batched_power_sgd_hook(), compress_wrapper(DType::float16, top_k_hook(0.1)),
        optimizer_hook([](std::size_t, const TensorView&) {})}) {
    EXPECT_THAT(with_unused(hook), HasSubstr("is set with find_unused_parameters"));
  }
  EXPECT_THAT(cause_of([&] {
                Reducer(parameters(), group_,
                        {.find_unused_parameters = true,
                         .skip_all_reduce_unused = true,
                         .write_unused = true,
                         .comm_hook = top_k_hook(0.1)});
              }),
              HasSubstr("is set with find_unused_parameters"));
  EXPECT_EQ(with_unused(power_sgd_hook({.error_feedback = false})), "no error");
  EXPECT_THAT(cause_of([&] { PeriodicModelAverager(group_, 0); }), HasSubstr("period is 0"));
  using Level = HierarchicalModelAverager::Level;
  EXPECT_THAT(cause_of([&] {
                HierarchicalModelAverager(group_, std::array<Level, 1>{{{1, 1}}});
              }),
              HasSubstr("no last level has all 2 ranks"));
  EXPECT_THAT(cause_of([&] {
                HierarchicalModelAverager(group_, std::array<Level, 1>{{{0, 2}}});
              }),
              HasSubstr("a period is 0"));
  EXPECT_THAT(cause_of([&] {
                HierarchicalModelAverager(group_, std::array<Level, 2>{{{1, 3}, {2, 2}}});
              }),
              HasSubstr("groups of 3 do not divide 2 ranks"));
  EXPECT_THAT(cause_of([&] {
                HierarchicalModelAverager(group_, std::array<Level, 2>{{{2, 1}, {2, 2}}});
              }),
              HasSubstr("period 2 of 2 ranks is not above the one before it"));
}

}  // namespace
}  // namespace ddp
