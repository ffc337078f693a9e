// What hooks make of buckets: copies in another floating-point type, which are sent in their place or computed with,
// and messages; and how they are exchanged.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <ddp/comm_hook.hpp>

namespace ddp::hooks {

/// Memory for what a hook makes of each bucket, kept from step to step: fresh pages would cost more than a cast.
class BucketCopies {
 public:
  std::shared_ptr<void> take(const GradientBucket& bucket, std::size_t bytes);
  /// Other ranks may be new, and have none: allocate() may be collective.
  void clear() noexcept { kept_.clear(); }

 private:
  struct Kept {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
    Device device;
  };
  std::vector<Kept> kept_;  ///< by bucket
};

/// to = from / divisor, between float32 and float16 or bfloat16.
void cast(TensorExecutor& executor, const TensorView& from, const TensorView& to, int divisor = 1);

/// A copy of @p bucket, divided by @p divisor, in memory of @p copies.
GradientBucket recast(const GradientBucket& bucket, BucketCopies& copies, DType type, int divisor = 1);

/// What reads or writes @p memory in the stream where the bucket is worked on.
CallOptions options_for(const GradientBucket& bucket, std::shared_ptr<const void> memory);
/// Adds the ranks' buckets, or averages them.
BucketExchange exchange(const GradientBucket& bucket, ReduceOp op, ProcessGroup& group);

// ---- What hooks that compute with gradients have in common: they do it in float32, by libddp's kernels, on processors
// and devices.

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
