// The rows of a tensor that are for each rank of an all_to_all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// Throws Error(invalid_argument) unless each of @p ranks gets as many rows. @param what the tensor is: input, output
inline void check_dealt(const at::Tensor& tensor, int ranks, const char* what) {
  const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (rows % ranks == 0) return;
  throw_invalid_argument(
      "all_to_all_single",
      std::to_string(rows) + " rows of the " + what + " cannot be dealt to " + std::to_string(ranks) + " ranks equally",
      std::string{"give "} + what + "_split_sizes: how many are for each rank");
}

/// @param splits rows for each rank; empty: equally many
inline std::vector<at::Tensor> dealt_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int ranks,
                                          const char* what) {
  if (!splits.empty()) return tensor.split_with_sizes(splits);
  check_dealt(tensor, ranks, what);
  return tensor.chunk(ranks);
}

}  // namespace ddp::torch
