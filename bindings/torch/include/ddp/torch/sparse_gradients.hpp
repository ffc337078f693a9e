// Sparse gradients of embeddings as a Reducer takes and gives them: rows and their values.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <ddp/reducer.hpp>

#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// The parameters whose gradients are sparse: of Embedding and EmbeddingBag with sparse(true).
inline std::set<const void*> sparse_parameters(const ::torch::nn::Module& module) {
  std::set<const void*> found;
  for (const auto& each : module.modules()) {
    if (const auto* const embedding = each->as<::torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* const bag = each->as<::torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

/// Throws Error(invalid_argument) if @p gradient does not consist of rows of @p parameter. @param kept owns the memory
/// of what is returned.
inline SparseGradient rows_of(const at::Tensor& gradient, const at::Tensor& parameter, at::Tensor& kept,
                              const std::string& attempted) {
  if (gradient.layout() != at::kSparse || gradient.sparse_dim() != 1 || gradient.sizes() != parameter.sizes()) {
    throw_invalid_argument(attempted, "it is " + description_of(gradient) + ", not rows of its parameter in COO layout",
                           "use the weight of a sparse embedding in nothing else, or leave its sparse off");
  }
  kept = gradient.coalesce();
  if (kept.scalar_type() != parameter.scalar_type()) kept = kept.to(parameter.scalar_type());
  return {.rows = memory_of(kept._indices().select(0, 0), attempted), .values = memory_of(kept._values(), attempted)};
}

/// A copy of a Reducer's average, on a device in the current stream.
inline at::Tensor sparse_tensor(const SparseGradient& average, const at::Tensor& parameter) {
  const auto count = static_cast<std::int64_t>(average.rows.numel());
  const at::Tensor indices = at::empty({1, count}, parameter.options().dtype(at::kLong).requires_grad(false));
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape.front() = count;
  const at::Tensor values = at::empty(shape, parameter.options().requires_grad(false));
  if (count > 0) {
    copy_elements(average.rows, indices);
    copy_elements(average.values, values);
  }
  return at::_sparse_coo_tensor_unsafe(indices, values, parameter.sizes(), values.options().layout(at::kSparse),
                                       /*is_coalesced=*/true);
}

}  // namespace ddp::torch
