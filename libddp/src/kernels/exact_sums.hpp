// Means whose bits do not depend on the order of their terms, since these are added as integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/copies.hpp"
#include "kernels/executor.hpp"

namespace ddp::kernels {

/// A tensor and its sums: two words for each element, and one for the values that had no place there.
struct ExactTensor {
  void* values;
  std::size_t count;
  std::int64_t* sums;
  std::int64_t* broken;
};
inline constexpr std::int64_t kMostExactTerms = std::int64_t{1} << 19U;

/// Adds the values, each rounded to a multiple of 2^-64. Those that are not finite, or have a magnitude of 2^23 and
/// more, are counted instead. Sums, too, can be added, word by word; all 0 is the sum of nothing.
/// @param format float32, float64, float16 or bfloat16; throws Error(invalid_argument) for others.
void add_exactly(Executor& executor, std::span<const ExactTensor> tensors, Format format);
/// values = sums / *@p terms, at most kMostExactTerms; all NaN in a tensor with values that had no place.
void exact_means(Executor& executor, std::span<const ExactTensor> tensors, Format format, const std::int64_t* terms);

}  // namespace ddp::kernels
