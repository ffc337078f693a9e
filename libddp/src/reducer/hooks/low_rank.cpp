#include "reducer/hooks/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace ddp::hooks {
namespace {

/// Partial sums that the compiler keeps in vectors, in an order that does not depend on the processor.
constexpr std::size_t kLanes = 16;

float dot(const float* a, const float* b, std::size_t count) {
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float each : sums) sum += each;
  return sum;
}

double exact_dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// Calls @p body with each row's number, elements and their count.
template <class Body>
void for_rows(const Matrix& matrix, Body&& body) {
  for (std::size_t first = 0, row = 0; first < matrix.elements.size(); first += matrix.columns, ++row) {
    body(row, matrix.elements.data() + first, std::min(matrix.columns, matrix.elements.size() - first));
  }
}

/// Makes column @p index orthogonal to those before it. @return whether more than rounding is left of it.
bool project(const Factor& factor, std::size_t index) {
  const auto column = factor.column(index);
  const double before = std::sqrt(exact_dot(column, column));
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t other = 0; other < index; ++other) {
      const auto base = factor.column(other);
      const double part = exact_dot(column, base);
      for (std::size_t i = 0; i < column.size(); ++i) {
        column[i] = static_cast<float>(static_cast<double>(column[i]) - part * static_cast<double>(base[i]));
      }
    }
  }
  constexpr double kNoise = 1e-5;  // some hundred units of float32's last place
  // NaN counts as something: it must not vanish
  return !(std::sqrt(exact_dot(column, column)) <= kNoise * before);
}

void normalize(std::span<float> column, float epsilon) {
  const double length = std::sqrt(exact_dot(column, column)) + static_cast<double>(epsilon);
  if (length == 0) return;
  for (float& value : column) value = static_cast<float>(static_cast<double>(value) / length);
}

std::uint64_t split_mix(std::uint64_t& state) {  // Steele, Lea, Flood: OOPSLA 2014
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31U);
}

}  // namespace

void multiply(const Matrix& matrix, const Factor& right, const Factor& left) {
  for_rows(matrix, [&](std::size_t row, const float* elements, std::size_t count) {
    for (std::size_t k = 0; k < left.columns; ++k) {
      left.column(k)[row] = dot(elements, right.column(k).data(), count);
    }
  });
}

void multiply_transposed(const Matrix& matrix, const Factor& left, const Factor& right) {
  std::fill_n(right.data, right.length * right.columns, 0.0F);
  for_rows(matrix, [&](std::size_t row, const float* elements, std::size_t count) {
    for (std::size_t k = 0; k < left.columns; ++k) {
      const float weight = left.column(k)[row];
      float* const sums = right.column(k).data();
      for (std::size_t i = 0; i < count; ++i) sums[i] += weight * elements[i];
    }
  });
}

void expand(const Factor& left, const Factor& right, float scale, const Matrix& matrix, std::span<float> difference) {
  std::ranges::copy(matrix.elements.first(difference.size()), difference.begin());
  for_rows(matrix, [&](std::size_t row, float* elements, std::size_t count) {
    std::fill_n(elements, count, 0.0F);
    for (std::size_t k = 0; k < left.columns; ++k) {
      const float weight = left.column(k)[row] * scale;
      const float* const values = right.column(k).data();
      for (std::size_t i = 0; i < count; ++i) elements[i] += weight * values[i];
    }
  });
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= matrix.elements[i];
}

void orthogonalize(const Factor& factor, float epsilon) {
  for (std::size_t k = 0; k < factor.columns; ++k) {
    if (!project(factor, k)) std::ranges::fill(factor.column(k), 0.0F);
    normalize(factor.column(k), epsilon);
  }
}

void orthogonalize_full(const Factor& factor, float epsilon, std::uint64_t seed) {
  for (std::size_t k = 0; k < factor.columns; ++k) {
    if (!project(factor, k)) {
      fill_normal(factor.column(k), seed + k);
      static_cast<void>(project(factor, k));
    }
    normalize(factor.column(k), epsilon);
  }
}

void fill_normal(std::span<float> values, std::uint64_t seed) {
  const auto uniform = [&] { return (static_cast<double>(split_mix(seed) >> 11U) + 0.5) * 0x1p-53; };
  for (float& value : values) {  // Box and Muller
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
}

}  // namespace ddp::hooks
