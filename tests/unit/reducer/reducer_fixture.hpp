// A Reducer over a backend that plays the other rank.
#pragma once

#include <ddp/reducer.hpp>

#include "collectives/group_engine.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {

using collectives::GroupEngine;
using ddp::OperationKind;
using test::error_of;
using test::soon;
using test::thrown_by;

/// The other rank, if there is one, has the same of everything.
inline void twin(const ddp::Operation& operation) {
  auto* const output = static_cast<std::byte*>(operation.output.data());
  const std::size_t bytes = operation.input.size_bytes();
  if (operation.kind == OperationKind::all_gather || operation.kind == OperationKind::all_gather_v) {
    std::memcpy(output, operation.input.data(), bytes);
    if (operation.output.size_bytes() > bytes) std::memcpy(output + bytes, operation.input.data(), bytes);
  } else if (operation.kind == OperationKind::all_reduce && operation.reduce_op == ReduceOp::sum) {
    const auto add = [&](auto* values) {
      for (std::size_t i = 0; i < operation.count; ++i) values[i] += values[i];
    };
    if (operation.dtype == DType::int32) add(reinterpret_cast<std::int32_t*>(output));
    if (operation.dtype == DType::int64) add(reinterpret_cast<std::int64_t*>(output));
    if (operation.dtype == DType::float32) add(reinterpret_cast<float*>(output));
  }
}

/// Four parameters of ten floats, each a bucket of its own; buckets start with the last parameter. Collective 1
/// compares the parameters, 2 broadcasts them, the first step's buckets are 3 to 6, and 7 tells who misses gradients.
struct ReducerTest : testing::Test {
  ReducerTest() {
    control_->effect = twin;
    for (int i = 0; i < 4; ++i) {
      values_.emplace_back(10, 1.0F);
      gradients_.emplace_back(10, static_cast<float>(i + 1));
    }
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      list.push_back({.name = "layer" + std::to_string(i), .value = values_[i], .gradient = gradients_[i]});
    }
    return list;
  }
  Reducer make(std::vector<Parameter> parameters, bool rebuild = false) {
    return Reducer(std::move(parameters), group_, {.bucket_cap_bytes = 40, .rebuild_buckets = rebuild});
  }
  Reducer make(bool rebuild = false) { return make(parameters(), rebuild); }
  static void step(Reducer& reducer, const std::vector<std::size_t>& order = {3, 2, 1, 0}) {
    reducer.prepare_for_backward();
    for (const std::size_t index : order) reducer.mark_ready(index);
    reducer.finalize();
  }
  static std::span<float> floats(const TensorView& view) { return {static_cast<float*>(view.data()), view.numel()}; }
  static std::string cause_of(const std::function<void()>& call) {
    const auto error = error_of(call);
    return error ? error->cause() : "no error";
  }
  /// Until the group knows that it has failed.
  void await_failure() {
    const Deadline deadline = soon();
    while (!error_of([&] { group_.barrier().wait(); })) ASSERT_FALSE(deadline.expired());
  }
  /// What the backend has begun since the Reducer was made.
  std::vector<std::string> launched() const {
    std::vector<std::string> names;
    for (const std::string& event : control_->events()) {
      if (event.starts_with("begin all_reduce")) names.push_back(event.substr(6));
    }
    return names;
  }
  void expect_broken(Reducer& reducer) {
    const Error error = thrown_by([&] { reducer.prepare_for_backward(); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.cause(), HasSubstr("an earlier one has failed"));
  }

  std::shared_ptr<test::BackendControl> control_ = std::make_shared<test::BackendControl>();
  // Rank 1 has no address: it counts as gone as soon as it is asked.
  ProcessGroup group_{GroupEngine::make(
      collectives::GroupMembers{
          .name = "test", .rank = 0, .global_ranks = {0, 1}, .endpoints = {{}, {}}, .channel = nullptr},
      test::fake_backends(control_), collectives::ConnectOptions{}, std::chrono::seconds(60))};
  std::deque<std::vector<float>> values_;
  std::deque<std::vector<float>> gradients_;
};

}  // namespace ddp
