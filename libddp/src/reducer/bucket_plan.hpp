// Which parameters share a bucket: the rule of PyTorch's compute_bucket_assignment_by_size.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ddp/tensor_view.hpp>

namespace ddp::reducer {

/// Tensor indices of each bucket.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// What the rule needs to know of a tensor.
struct TensorInfo {
  std::size_t size_bytes = 0;
  DType dtype = DType::float32;
  Device device;
};

/// Assigns tensors to buckets. Tensors of one bucket have the same element type and device. For each such kind, tensors
/// are appended in order until the bucket has reached its limit; a tensor is never split, so a bucket may exceed it.
/// The n-th bucket of a kind has the n-th limit; the last limit repeats.
/// @param order the tensor index of each entry of @p tensors, in the order in which gradients became ready; then
/// buckets
///        stay in the order in which they were closed, with those left open behind them (the kind whose first tensor
///        came first leading). Empty: entry i is tensor i, and buckets are sorted by their smallest index.
/// Throws Error(invalid_argument) when @p size_limits is empty.
BucketPlan assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> size_limits,
                          std::span<const std::size_t> order = {});

}  // namespace ddp::reducer
