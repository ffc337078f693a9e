// What hooks that compute with gradients have in common: they do it in float32, by libddp's kernels, on processors and
// devices.
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
  void join_group(ProcessGroup& group) override;
  void end_step(bool complete) noexcept override;
  bool serves_cuda() const final { return true; }

 protected:
  /// @p bucket is float32. What it returns puts work into the executor's stream, too.
  virtual BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) = 0;
  /// All that is kept from step to step: a step has failed, or the group is another one.
  virtual void forget() noexcept = 0;
  BucketExchange start_average(const GradientBucket& bucket, ProcessGroup& group) {
    return average_->start(bucket, group);
  }

 private:
  void forget_all() noexcept;

  std::shared_ptr<CommHook> average_ = all_reduce_hook();
  BucketCopies copies_;
};

inline std::span<float> floats(const TensorView& view) { return {static_cast<float*>(view.data()), view.numel()}; }

}  // namespace ddp::hooks
