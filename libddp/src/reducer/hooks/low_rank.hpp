// The matrices of PowerSGD: products of a gradient with thin factors. The same bits on all ranks from the same inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddp::hooks {

/// A gradient, row-major; elements behind its end are 0.
struct Matrix {
  std::span<float> elements;
  std::size_t columns;
  std::size_t rows() const { return (elements.size() + columns - 1) / columns; }
};

/// Columns of equal length one behind the other, so that each is contiguous.
struct Factor {
  float* data;
  std::size_t length;
  std::size_t columns;
  std::span<float> column(std::size_t index) const { return {data + index * length, length}; }
};

/// left = matrix * right.
void multiply(const Matrix& matrix, const Factor& right, const Factor& left);
/// right = transposed(matrix) * left.
void multiply_transposed(const Matrix& matrix, const Factor& left, const Factor& right);
/// matrix = left * transposed(right) * scale. What it changes goes to @p difference, if that is not empty: before -
/// after.
void expand(const Factor& left, const Factor& right, float scale, const Matrix& matrix, std::span<float> difference);

/// Gram-Schmidt, with each column projected twice. A column that lies in the span of those before it, up to rounding,
/// becomes 0: what would be left of it is noise. @param epsilon added to the length that a column is divided by.
void orthogonalize(const Factor& factor, float epsilon);
/// As above, but such columns, and those that are 0, become random ones first.
void orthogonalize_full(const Factor& factor, float epsilon, std::uint64_t seed);
/// Standard normal numbers, equal for equal seeds.
void fill_normal(std::span<float> values, std::uint64_t seed);

}  // namespace ddp::hooks
