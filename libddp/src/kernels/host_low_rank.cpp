// The kernels of low_rank.hpp on processors. Sums are those of a device's threads, in their order.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/element.hpp"
#include "kernels/host_kernels.hpp"

namespace ddp::kernels::host {
namespace {

float dot(const float* a, const float* b, std::uint64_t count) {
  std::array<float, kColumnLanes> sums{};
  std::uint64_t i = 0;
  for (; i + kColumnLanes <= count; i += kColumnLanes) {
    for (std::size_t lane = 0; lane < kColumnLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float each : sums) sum += each;
  return sum;
}

/// In the order of a block: each thread adds its elements, then they are added pairwise.
double exact_dot(const float* a, const float* b, std::uint64_t count) {
  std::array<double, kThreads> sums{};
  const auto add = [&](std::uint64_t first, std::size_t length) {
    for (std::size_t lane = 0; lane < length; ++lane) {
      sums[lane] += static_cast<double>(a[first + lane]) * static_cast<double>(b[first + lane]);
    }
  };
  std::uint64_t first = 0;
  for (; first + kThreads <= count; first += kThreads) add(first, kThreads);
  add(first, count - first);
  for (std::size_t half = kThreads / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

/// Calls @p body with the number of each row from @p first on, every @p step-th, its elements and their count.
template <class Body>
void for_matrix_rows(const LowRankArguments& arguments, std::uint64_t first, std::uint64_t step, Body body) {
  for (std::uint64_t row = first; row * arguments.columns < arguments.count; row += step) {
    const std::uint64_t begin = row * arguments.columns;
    body(row, arguments.matrix + begin, std::min(arguments.columns, arguments.count - begin));
  }
}

std::uint64_t rows_of(const LowRankArguments& arguments) { return (arguments.count - 1) / arguments.columns + 1; }

/// A factor's columns.
class Columns {
 public:
  Columns(const FactorArguments& arguments, std::uint32_t factor)
      : data_(arguments.data[factor]), length_(arguments.length[factor]), epsilon_(arguments.epsilon) {}

  /// Makes column @p index orthogonal to those before it. @return whether more than rounding is left of it.
  bool project(std::uint32_t index) const {
    float* const column = at(index);
    const double before = std::sqrt(exact_dot(column, column, length_));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::uint32_t other = 0; other < index; ++other) {
        const float* const base = at(other);
        const double part = exact_dot(column, base, length_);
        for (std::uint64_t i = 0; i < length_; ++i) {
          column[i] = static_cast<float>(static_cast<double>(column[i]) - part * static_cast<double>(base[i]));
        }
      }
    }
    // NaN counts as something: it must not vanish
    return !(std::sqrt(exact_dot(column, column, length_)) <= kColumnNoise * before);
  }
  void normalize(std::uint32_t index) const {
    float* const column = at(index);
    const double length = std::sqrt(exact_dot(column, column, length_)) + static_cast<double>(epsilon_);
    if (length == 0) return;
    for (std::uint64_t i = 0; i < length_; ++i) {
      column[i] = static_cast<float>(static_cast<double>(column[i]) / length);
    }
  }
  void clear(std::uint32_t index) const { std::fill_n(at(index), length_, 0.0F); }
  void randomize(std::uint32_t index, std::uint64_t seed) const {
    for (std::uint64_t i = 0; i < length_; ++i) at(index)[i] = random_normal(seed, i);
  }

 private:
  float* at(std::uint32_t index) const { return data_ + index * length_; }

  float* data_;
  std::uint64_t length_;
  float epsilon_;
};

bool all_finite(const float* values, std::uint64_t count) {
  bool finite = true;
  for (std::uint64_t i = 0; i < count; ++i) finite = finite && is_finite(values[i]);
  return finite;
}

}  // namespace

void low_rank_left(const LowRankArguments& arguments) {
  const std::uint64_t rows = rows_of(arguments);
  for_matrix_rows(arguments, 0, 1, [&](std::uint64_t row, const float* elements, std::uint64_t count) {
    for (std::uint32_t k = 0; k < arguments.rank; ++k) {
      arguments.left[k * rows + row] = dot(elements, arguments.right + k * arguments.columns, count);
    }
  });
}

void low_rank_right(const LowRankArguments& arguments) {
  const std::uint64_t rows = rows_of(arguments);
  const std::size_t count = arguments.columns * arguments.rank;
  std::vector<float> sums(count);
  std::fill_n(arguments.right, count, 0.0F);
  for (std::uint32_t lane = 0; lane < kRowLanes; ++lane) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for_matrix_rows(arguments, lane, kRowLanes, [&](std::uint64_t row, const float* elements, std::uint64_t length) {
      for (std::uint32_t k = 0; k < arguments.rank; ++k) {
        const float weight = arguments.left[k * rows + row];
        float* __restrict to = sums.data() + k * arguments.columns;
        for (std::uint64_t i = 0; i < length; ++i) to[i] += weight * elements[i];
      }
    });
    for (std::size_t i = 0; i < count; ++i) arguments.right[i] += sums[i];
  }
}

void low_rank_expand(const LowRankArguments& arguments) {
  const std::uint64_t rows = rows_of(arguments);
  const bool finite = arguments.finite == nullptr || *arguments.finite != 0;
  if (arguments.difference != nullptr) std::copy_n(arguments.matrix, arguments.count, arguments.difference);
  for_matrix_rows(arguments, 0, 1, [&](std::uint64_t row, const float* /*written*/, std::uint64_t count) {
    float* __restrict elements = arguments.matrix + row * arguments.columns;
    std::fill_n(elements, count, 0.0F);
    for (std::uint32_t k = 0; k < arguments.rank; ++k) {
      const float weight = arguments.left[k * rows + row] * arguments.scale;
      const float* const values = arguments.right + k * arguments.columns;
      for (std::uint64_t i = 0; i < count; ++i) elements[i] += weight * values[i];
    }
  });
  if (arguments.difference == nullptr) return;
  for (std::uint64_t i = 0; i < arguments.count; ++i) {
    arguments.difference[i] = finite ? arguments.difference[i] - arguments.matrix[i] : 0.0F;
  }
}

void begin_factors(const FactorArguments& arguments) {
  for (std::uint32_t factor = 0; factor < arguments.factors; ++factor) {
    float* const data = arguments.data[factor];
    const float* const from = arguments.from[factor];
    const std::uint64_t seed = arguments.seed[factor];
    const std::uint64_t count = arguments.length[factor] * arguments.columns[factor];
    const bool keeps = from != nullptr && all_finite(from, count);
    for (std::uint64_t i = 0; i < count; ++i) data[i] = keeps ? from[i] : random_normal(seed, i);
    const Columns columns(arguments, factor);
    for (std::uint32_t k = 0; k < arguments.columns[factor]; ++k) {
      if (!columns.project(k)) {
        columns.randomize(k, seed + 1 + k);
        static_cast<void>(columns.project(k));
      }
      columns.normalize(k);
    }
  }
}

void orthogonalize(const FactorArguments& arguments) {
  for (std::uint32_t factor = 0; factor < arguments.factors; ++factor) {
    const Columns columns(arguments, factor);
    for (std::uint32_t k = 0; k < arguments.columns[factor]; ++k) {
      if (!columns.project(k)) columns.clear(k);
      columns.normalize(k);
    }
  }
}

void check_finite(const FactorArguments& arguments) {
  for (std::uint32_t factor = 0; factor < arguments.factors; ++factor) {
    const bool finite = all_finite(arguments.data[factor], arguments.length[factor] * arguments.columns[factor]);
    arguments.finite[factor] = finite ? 1 : 0;
  }
}

}  // namespace ddp::kernels::host
