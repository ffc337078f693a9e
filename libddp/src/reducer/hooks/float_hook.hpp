// What hooks that compute with gradients have in common: they do it in float32.
#pragma once

#include <memory>
#include <span>

#include <ddp/comm_hook.hpp>

#include "reducer/hooks/recast.hpp"

namespace ddp::hooks {

/// Buckets of float16 and bfloat16 are converted to float32 and back; those of other types are averaged.
class FloatHook : public CommHook {
 public:
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) final;

 protected:
  /// @p bucket is float32.
  virtual BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) = 0;
  BucketExchange start_average(const GradientBucket& bucket, ProcessGroup& group) {
    return average_->start(bucket, group);
  }

 private:
  std::shared_ptr<CommHook> average_ = all_reduce_hook();
  BucketCopies copies_;
};

inline std::span<float> floats(const TensorView& view) { return {static_cast<float*>(view.data()), view.numel()}; }

}  // namespace ddp::hooks
