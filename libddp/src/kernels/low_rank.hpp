// The matrices of PowerSGD: products of a gradient with thin factors. The same bits on processors and devices, and so
// on all ranks, from the same inputs: sums have a fixed order, which does not depend on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/executor.hpp"

namespace ddp::kernels {

/// A gradient, row-major; elements behind its end are 0. At least one element.
struct Matrix {
  float* elements;
  std::size_t count;
  std::size_t columns;
  std::size_t rows() const { return (count - 1) / columns + 1; }
};

/// Columns of equal length one after the other, so that each is contiguous. At least one.
struct Factor {
  float* data;
  std::size_t length;
  std::size_t columns;
  std::size_t count() const { return length * columns; }
};

/// left = matrix * right.
void multiply(Executor& executor, const Matrix& matrix, const Factor& right, const Factor& left);
/// right = transposed(matrix) * left.
void multiply_transposed(Executor& executor, const Matrix& matrix, const Factor& left, const Factor& right);
/// matrix = left * transposed(right) * scale. What it changes goes to @p difference, if that is not null: before -
/// after; zeros where @p finite, of check_finite, is 0.
void expand(Executor& executor, const Factor& left, const Factor& right, float scale, const Matrix& matrix,
            float* difference, const std::uint32_t* finite);

/// Gram-Schmidt in double precision, with each column projected twice. A column that lies in the span of those before
/// it, up to rounding, becomes 0: what would be left of it is noise. @param epsilon added to the length that a column
/// is divided by.
void orthogonalize(Executor& executor, std::span<const Factor> factors, float epsilon);

struct Beginning {
  Factor factor;
  const float* kept;   ///< of the same size, or the factor itself; null: none
  std::uint64_t seed;  ///< of random numbers, with room for one more for each column
};
/// What was kept, or, where it is not finite or there is nothing, random numbers; then as above, but a column that
/// would become 0 becomes a random one first.
void begin_factors(Executor& executor, std::span<const Beginning> beginnings, float epsilon);

/// finite[i] = whether all elements of factor i are finite.
void check_finite(Executor& executor, std::span<const Factor> factors, std::uint32_t* finite);

}  // namespace ddp::kernels
