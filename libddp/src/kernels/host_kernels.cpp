#include "kernels/host_kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/element.hpp"
#include "kernels/exact_element.hpp"

namespace ddp::kernels::host {
namespace {

template <class From, class To>
void copy(const PieceArguments& arguments) {
  const auto scale = static_cast<typename From::Value>(arguments.scale);
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    const auto* __restrict from = static_cast<const typename From::Stored*>(arguments.from[piece]);
    auto* __restrict to = static_cast<typename To::Stored*>(arguments.to[piece]);
    const std::size_t count = arguments.count[piece];
    for (std::size_t i = 0; i < count; ++i) to[i] = converted<From, To>(from[i], scale);
  }
}

template <class Word>
void fill(const PieceArguments& arguments) {
  const Word word = static_cast<Word>(arguments.pattern);
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    std::fill_n(static_cast<Word*>(arguments.to[piece]), arguments.count[piece], word);
  }
}

/// Calls @p body with the number, the first element and the length of each row.
template <class Body>
void for_rows(std::uint64_t count, std::uint64_t row, Body body) {
  for (std::uint64_t first = 0, number = 0; first < count; first += row, ++number) {
    body(number, first, std::min(row, count - first));
  }
}

template <class Stored>
void quantize_as(const QuantizeArguments& arguments) {
  const bool symmetric = arguments.symmetric != 0;
  for_rows(arguments.count, arguments.row, [&](std::uint64_t number, std::uint64_t first, std::uint64_t length) {
    const RowScale scale = row_scale(arguments.range[2 * number], arguments.range[2 * number + 1], symmetric);
    arguments.scales[number] = scale;
    const float* __restrict from = arguments.from + first;
    auto* __restrict to = static_cast<Stored*>(arguments.to) + first;
    for (std::uint64_t i = 0; i < length; ++i) to[i] = static_cast<Stored>(quantized(from[i], scale, symmetric));
  });
}

template <class Stored>
void dequantize_as(const DequantizeArguments& arguments) {
  for_rows(arguments.count, arguments.row, [&](std::uint64_t number, std::uint64_t first, std::uint64_t length) {
    float* __restrict to = arguments.to + first;
    for (std::uint32_t message = 0; message < arguments.messages; ++message) {
      const RowScale scale = behind(arguments.scales, message * arguments.stride)[number];
      const auto* __restrict from =
          behind(static_cast<const Stored*>(arguments.from), message * arguments.stride) + first;
      if (message == 0) {
        for (std::uint64_t i = 0; i < length; ++i) to[i] = dequantized(from[i], scale);
      } else {
        for (std::uint64_t i = 0; i < length; ++i) to[i] += dequantized(from[i], scale);
      }
    }
    if (arguments.divisor == 1) return;
    for (std::uint64_t i = 0; i < length; ++i) to[i] /= arguments.divisor;
  });
}

/// Calls @p body for each element of the piece's floats.
template <class Body>
void for_floats(const PieceArguments& arguments, Body body) {
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    const auto* __restrict from = static_cast<const float*>(arguments.from[piece]);
    auto* __restrict to = static_cast<float*>(arguments.to[piece]);
    for (std::size_t i = 0; i < arguments.count[piece]; ++i) body(from[i], to[i]);
  }
}

Selected selected_before(const SelectionArguments& arguments, std::uint32_t passes) {
  Selected selected{0, arguments.wanted};
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    selected = narrowed(selected, arguments.workspace->histogram[pass], pass);
  }
  return selected;
}

}  // namespace

void copy_f32_f32(const PieceArguments& arguments) { copy<Float32Element, Float32Element>(arguments); }
void copy_f32_f16(const PieceArguments& arguments) { copy<Float32Element, Float16Element>(arguments); }
void copy_f16_f32(const PieceArguments& arguments) { copy<Float16Element, Float32Element>(arguments); }
void copy_f32_bf16(const PieceArguments& arguments) { copy<Float32Element, BFloat16Element>(arguments); }
void copy_bf16_f32(const PieceArguments& arguments) { copy<BFloat16Element, Float32Element>(arguments); }
void copy_f32_e4m3(const PieceArguments& arguments) { copy<Float32Element, Float8Element<E4M3>>(arguments); }
void copy_e4m3_f32(const PieceArguments& arguments) { copy<Float8Element<E4M3>, Float32Element>(arguments); }
void copy_f32_e5m2(const PieceArguments& arguments) { copy<Float32Element, Float8Element<E5M2>>(arguments); }
void copy_e5m2_f32(const PieceArguments& arguments) { copy<Float8Element<E5M2>, Float32Element>(arguments); }
void copy_f16_f16(const PieceArguments& arguments) { copy<Float16Element, Float16Element>(arguments); }
void copy_bf16_bf16(const PieceArguments& arguments) { copy<BFloat16Element, BFloat16Element>(arguments); }
void copy_f64_f64(const PieceArguments& arguments) { copy<Float64Element, Float64Element>(arguments); }
void copy_raw(const PieceArguments& arguments) {
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    std::memcpy(arguments.to[piece], arguments.from[piece], arguments.count[piece]);
  }
}

void fill_1(const PieceArguments& arguments) { fill<std::uint8_t>(arguments); }
void fill_2(const PieceArguments& arguments) { fill<std::uint16_t>(arguments); }
void fill_4(const PieceArguments& arguments) { fill<std::uint32_t>(arguments); }
void fill_8(const PieceArguments& arguments) { fill<std::uint64_t>(arguments); }

void range(const RangeArguments& arguments) {
  for_rows(arguments.count, arguments.row, [&](std::uint64_t number, std::uint64_t first, std::uint64_t length) {
    std::uint32_t largest = arguments.range[2 * number];
    std::uint32_t smallest = arguments.range[2 * number + 1];
    for (std::uint64_t i = first; i < first + length; ++i) {
      largest = std::max(largest, order_key(arguments.from[i]));
      smallest = std::max(smallest, reverse_key(arguments.from[i]));
    }
    arguments.range[2 * number] = largest;
    arguments.range[2 * number + 1] = smallest;
  });
}

void quantize(const QuantizeArguments& arguments) {
  arguments.symmetric != 0 ? quantize_as<std::int8_t>(arguments) : quantize_as<std::uint8_t>(arguments);
}

void dequantize(const DequantizeArguments& arguments) {
  arguments.symmetric != 0 ? dequantize_as<std::int8_t>(arguments) : dequantize_as<std::uint8_t>(arguments);
}

void selection_histogram(const SelectionArguments& arguments) {
  const std::uint32_t prefix = selected_before(arguments, arguments.pass).prefix;
  std::uint32_t* histogram = arguments.workspace->histogram[arguments.pass];
  for (std::uint32_t i = 0; i < arguments.count; ++i) {
    const std::uint32_t key = magnitude_key(arguments.from[i]);
    if (begins_with(key, prefix, arguments.pass)) ++histogram[(key >> pass_shift(arguments.pass)) & (kBins - 1)];
  }
}

void selection_count(const SelectionArguments& arguments) {
  const std::uint32_t last = selected_before(arguments, kPasses).prefix;
  for_rows(arguments.count, arguments.block_size, [&](std::uint64_t block, std::uint64_t first, std::uint64_t length) {
    std::uint32_t greater = 0;
    std::uint32_t equal = 0;
    for (std::uint64_t i = first; i < first + length; ++i) {
      const std::uint32_t key = magnitude_key(arguments.from[i]);
      greater += static_cast<std::uint32_t>(key > last);
      equal += static_cast<std::uint32_t>(key == last);
    }
    arguments.workspace->greater[block] = greater;
    arguments.workspace->equal[block] = equal;
  });
}

void selection_gather(const SelectionArguments& arguments) {
  Selected selected = selected_before(arguments, kPasses);
  std::uint32_t position = 0;
  for (std::uint32_t i = 0; i < arguments.count && position < arguments.wanted; ++i) {
    const std::uint32_t key = magnitude_key(arguments.from[i]);
    if (key < selected.prefix || (key == selected.prefix && selected.left == 0)) continue;
    if (key == selected.prefix) --selected.left;
    arguments.indices[position] = i;
    arguments.values[position] = arguments.from[i];
    ++position;
  }
}

void scatter_add(const ScatterArguments& arguments) {
  for (std::uint32_t i = 0; i < arguments.count; ++i) {
    arguments.to[arguments.indices[i]] += arguments.values[i] / arguments.divisor;
  }
}

void scatter_zero(const ScatterArguments& arguments) {
  for (std::uint32_t i = 0; i < arguments.count; ++i) arguments.to[arguments.indices[i]] = 0;
}

void add(const PieceArguments& arguments) {
  for_floats(arguments, [](float from, float& to) { to += from; });
}

void copy_finite(const PieceArguments& arguments) {
  for_floats(arguments, [](float from, float& to) { to = finite_or_zero(from); });
}

// Host kernels of the exact sums in copies.hpp.

namespace {

template <class Element>
void exact_add(const ExactArguments& arguments) {
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    const auto* const values = static_cast<const typename Element::Stored*>(arguments.values[piece]);
    std::int64_t* const sums = arguments.sums[piece];
    for (std::size_t i = 0; i < arguments.count[piece]; ++i) {
      if (!add_exactly(static_cast<double>(Element::load(values[i])), sums + 2 * i)) ++*arguments.broken[piece];
    }
  }
}

template <class Element>
void exact_mean(const ExactArguments& arguments) {
  const auto terms = static_cast<double>(*arguments.terms);
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    auto* const values = static_cast<typename Element::Stored*>(arguments.values[piece]);
    const std::int64_t* const sums = arguments.sums[piece];
    const bool broken = *arguments.broken[piece] != 0;
    for (std::size_t i = 0; i < arguments.count[piece]; ++i) {
      values[i] = mean_of_terms<Element>(sums + 2 * i, terms, broken);
    }
  }
}

}  // namespace

void exact_add_f32(const ExactArguments& arguments) { exact_add<Float32Element>(arguments); }
void exact_add_f64(const ExactArguments& arguments) { exact_add<Float64Element>(arguments); }
void exact_add_f16(const ExactArguments& arguments) { exact_add<Float16Element>(arguments); }
void exact_add_bf16(const ExactArguments& arguments) { exact_add<BFloat16Element>(arguments); }
void exact_mean_f32(const ExactArguments& arguments) { exact_mean<Float32Element>(arguments); }
void exact_mean_f64(const ExactArguments& arguments) { exact_mean<Float64Element>(arguments); }
void exact_mean_f16(const ExactArguments& arguments) { exact_mean<Float16Element>(arguments); }
void exact_mean_bf16(const ExactArguments& arguments) { exact_mean<BFloat16Element>(arguments); }

// Host kernels of low_rank.hpp. They add in the order of a device's threads.

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

/// Adds in a block's order: each thread adds its elements, then the sums are added pairwise.
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

/// Calls @p body with the number of every @p step-th row from @p first on, its elements and their count.
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

  /// Makes column @p index orthogonal to those before it. @return whether more than rounding error is left of it
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
    // NaN counts as significant: it must not vanish
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
