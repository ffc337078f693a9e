// Lists of tensors, as c10d's operations have them, and the one memory that libddp's have.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/torch/c10d_work.hpp>

namespace ddp::torch {

/// For as many tensors like @p part as there are ranks, one behind the other.
inline at::Tensor for_each_rank(const at::Tensor& part, int ranks) {
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), ranks);
  return at::empty(shape, part.options());
}

inline std::vector<at::Tensor> joined(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  std::vector<at::Tensor> all = some;
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

/// From @p flat to its @p parts.
inline std::vector<C10dWork::Copy> unpack(const at::Tensor& flat, const std::vector<at::Tensor>& parts) {
  std::vector<C10dWork::Copy> copies;
  for (std::size_t i = 0; i < parts.size(); ++i) copies.push_back({parts[i], flat[static_cast<std::int64_t>(i)]});
  return copies;
}

}  // namespace ddp::torch
