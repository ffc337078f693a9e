#include "reducer/hooks/recast.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace ddp::hooks {

std::shared_ptr<void> BucketCopies::take(const GradientBucket& bucket, std::size_t bytes) {
  if (bucket.index >= kept_.size()) kept_.resize(bucket.index + 1);
  Kept& kept = kept_[bucket.index];
  const Device device = bucket.buffer.device();
  if (kept.memory && kept.bytes == bytes && kept.device == device) return kept.memory;
  kept = {};  // before the new one needs memory
  kept = {.memory = bucket.allocate(std::max<std::size_t>(bytes, 1)), .bytes = bytes, .device = device};
  return kept.memory;
}

void cast(TensorExecutor& executor, const TensorView& from, const TensorView& to, int divisor) {
  const TensorCopy copy{.from = from.data(), .to = to.data(), .count = from.numel()};
  executor.copy({&copy, 1}, from.dtype(), to.dtype(), divisor);
}

GradientBucket recast(const GradientBucket& bucket, BucketCopies& copies, DType type, int divisor) {
  GradientBucket copy = bucket;
  copy.memory = copies.take(bucket, bucket.buffer.numel() * size_of(type));
  copy.buffer = {copy.memory.get(), type, bucket.buffer.shape(), bucket.buffer.device()};
  cast(*bucket.executor, bucket.buffer, copy.buffer, divisor);
  copy.gradients.clear();
  std::size_t offset = 0;
  for (const TensorView& gradient : bucket.gradients) {
    auto* const place = static_cast<std::byte*>(copy.memory.get()) + offset * size_of(type);
    copy.gradients.emplace_back(place, type, gradient.shape(), gradient.device());
    offset += gradient.numel();
  }
  return copy;
}

CallOptions options_for(const GradientBucket& bucket, std::shared_ptr<const void> memory) {
  CallOptions options{std::optional<Deadline>{}, std::move(memory)};
  options.stream = bucket.executor->stream();
  return options;
}

BucketExchange exchange(const GradientBucket& bucket, ReduceOp op, ProcessGroup& group) {
  const Work work = group.all_reduce(bucket.buffer, op, options_for(bucket, bucket.memory));
  return [executor = bucket.executor, work] { executor->wait_for(work); };
}

BucketExchange FloatHook::start(const GradientBucket& bucket, ProcessGroup& group) {
  const DType type = bucket.buffer.dtype();
  if (type == DType::float32) return start_floats(bucket, group);
  if (type != DType::float16 && type != DType::bfloat16) return start_average(bucket, group);
  GradientBucket wide = recast(bucket, copies_, DType::float32);
  BucketExchange exchange = start_floats(wide, group);
  return [bucket, wide = std::move(wide), exchange = std::move(exchange)] {
    exchange();
    cast(*bucket.executor, wide.buffer, bucket.buffer);
  };
}

void FloatHook::join_group(ProcessGroup& /*another*/) { forget_all(); }
void FloatHook::end_step(bool complete) noexcept {
  if (!complete) forget_all();
}

void FloatHook::forget_all() noexcept {
  copies_.clear();
  forget();
}

}  // namespace ddp::hooks
