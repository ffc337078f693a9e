// Buckets in another floating-point type: what is sent instead of them, or computed with.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ddp/comm_hook.hpp>

namespace ddp::hooks {

/// Memory for copies of buckets, kept from step to step: fresh pages would cost more than the cast.
class BucketCopies {
 public:
  std::shared_ptr<void> take(std::size_t bucket, std::size_t bytes);

 private:
  std::vector<std::pair<std::shared_ptr<void>, std::size_t>> kept_;  ///< by bucket
};

/// to = from * scale, between float32 and float16 or bfloat16.
void cast(const TensorView& from, const TensorView& to, double scale);

/// A copy of @p bucket, times @p scale, in memory of @p copies.
GradientBucket recast(const GradientBucket& bucket, BucketCopies& copies, DType type, double scale);

}  // namespace ddp::hooks
