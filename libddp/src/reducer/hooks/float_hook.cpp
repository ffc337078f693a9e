#include "reducer/hooks/float_hook.hpp"

#include <utility>

namespace ddp::hooks {

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
