// Tensors in the order of their indices, in which elements of all ranks meet, however each rank's memory is laid out.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/torch/c10d_work.hpp>

namespace ddp::torch {

/// What an operation may work on in the place of a tensor: itself, where its memory is in row-major order, or is for
/// the operation to refuse; else a copy.
class RowOrder {
 public:
  /// @param reads the operation needs the values. @param writes it gives others, which copies() bring to the tensor.
  RowOrder(const at::Tensor& tensor, bool reads, bool writes) : tensor_(tensor) {
    if (tensor.layout() != at::kStrided || tensor.is_contiguous()) return;
    if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg()) return;
    const at::NoGradGuard no_grad;
    tensor_ = reads ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options());
    if (writes) copies_.push_back({tensor, tensor_});
  }

  const at::Tensor& tensor() const noexcept { return tensor_; }
  std::vector<C10dWork::Copy> copies() const { return copies_; }

 private:
  at::Tensor tensor_;
  std::vector<C10dWork::Copy> copies_;
};

}  // namespace ddp::torch
