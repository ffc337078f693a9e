#include "kernels/host_kernels.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/element.hpp"

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

/// Calls @p body for each element of the floats that a piece has.
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

}  // namespace ddp::kernels::host
