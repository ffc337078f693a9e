// What the kernels do with one element or one row, for processors and devices: only the loops around it differ.
#pragma once

#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/number_formats.hpp"

namespace ddp::kernels {

/// A format's stored bits, and the type that its numbers are computed in.
struct Float32Element {
  using Stored = float;
  using Value = float;
  static DDP_ON_BOTH float load(float stored) noexcept { return stored; }
  static DDP_ON_BOTH float store(float value) noexcept { return value; }
};
struct Float64Element {
  using Stored = double;
  using Value = double;
  static DDP_ON_BOTH double load(double stored) noexcept { return stored; }
  static DDP_ON_BOTH double store(double value) noexcept { return value; }
};
struct Float16Element {
  using Stored = std::uint16_t;
  using Value = float;
  static DDP_ON_BOTH float load(Stored stored) noexcept { return float16_to_float(stored); }
  static DDP_ON_BOTH Stored store(float value) noexcept { return float_to_float16(value); }
};
struct BFloat16Element {
  using Stored = std::uint16_t;
  using Value = float;
  static DDP_ON_BOTH float load(Stored stored) noexcept { return bfloat16_to_float(stored); }
  static DDP_ON_BOTH Stored store(float value) noexcept { return float_to_bfloat16(value); }
};
template <class Format>
struct Float8Element {
  using Stored = std::uint8_t;
  using Value = float;
  static DDP_ON_BOTH float load(Stored stored) noexcept { return float8_to_float<Format>(stored); }
  static DDP_ON_BOTH Stored store(float value) noexcept { return float_to_float8<Format>(value); }
};
/// Moved as it is.
struct RawElement {
  using Stored = std::uint8_t;
};

/// One element of a copy.
template <class From, class To>
DDP_ON_BOTH typename To::Stored converted(typename From::Stored stored, typename From::Value scale) noexcept {
  return To::store(From::load(stored) * scale);
}

/// Ordered like the numbers, -0 below 0; NaN above all, whatever its sign. Never 0.
DDP_ON_BOTH std::uint32_t order_key(float value) noexcept {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t key = bits ^ pick_bits((bits >> 31U) != 0, 0xffffffffU, 0x80000000U);
  return pick_bits((bits & 0x7fffffffU) > 0x7f800000U, 0xffffffffU, key);
}
/// The same of the other end: NaN is smallest, too.
DDP_ON_BOTH std::uint32_t reverse_key(float value) noexcept {
  const std::uint32_t key = order_key(value);
  return pick_bits(key == 0xffffffffU, key, ~key);
}
DDP_ON_BOTH float value_of_key(std::uint32_t key) noexcept {
  return float_of(key ^ pick_bits((key >> 31U) != 0, 0x80000000U, 0xffffffffU));
}

/// To the nearest whole number, ties to even, for magnitudes below 2^22: rintf, which is a call on older processors.
DDP_ON_BOTH float nearest_whole(float value) noexcept {
  constexpr float kNoFraction = 0x1.8p23F;  // numbers around it have none
  return (value + kNoFraction) - kNoFraction;
}

/// The scale of a row from its range. With 0 inside, so that 0 stays 0.
DDP_ON_BOTH RowScale row_scale(std::uint32_t largest_key, std::uint32_t reverse_of_smallest, bool symmetric) noexcept {
  constexpr float kSteps = 255;
  constexpr float kSymmetricSteps = 127;
  const float nan = float_of(0x7fc00000U);
  if (largest_key == 0xffffffffU || reverse_of_smallest == 0xffffffffU) return {nan, 0};
  float largest = value_of_key(largest_key);
  float smallest = value_of_key(~reverse_of_smallest);
  largest = largest > 0 ? largest : 0;
  smallest = smallest < 0 ? smallest : 0;
  if (largest > 3.40282347e+38F || smallest < -3.40282347e+38F) return {nan, 0};
  if (symmetric) return {(largest > -smallest ? largest : -smallest) / kSymmetricSteps, 0};
  const float scale = largest / kSteps - smallest / kSteps;  // the difference of both could be infinite
  if (scale == 0) return {0, 0};
  const float zero_point = nearest_whole(-smallest / scale);
  return {scale, zero_point < kSteps ? zero_point : kSteps};
}

/// A value's step. 0 where the row's scale says nothing.
DDP_ON_BOTH std::int32_t quantized(float value, RowScale row, bool symmetric) noexcept {
  const float smallest = symmetric ? -127.0F : 0.0F;
  const float largest = symmetric ? 127.0F : 255.0F;
  if (!(row.scale > 0)) return 0;
  const float step = nearest_whole(value / row.scale) + row.zero_point;
  return static_cast<std::int32_t>(step < smallest ? smallest : (step > largest ? largest : step));
}

DDP_ON_BOTH float dequantized(std::int32_t step, RowScale row) noexcept {
  return (static_cast<float>(step) - row.zero_point) * row.scale;
}

/// The same array of a message that lies so many bytes later.
template <class T>
DDP_ON_BOTH const T* behind(const T* array, std::uint64_t bytes) noexcept {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(array) + bytes);
}

DDP_ON_BOTH bool is_finite(float value) noexcept { return (bits_of(value) & 0x7f800000U) != 0x7f800000U; }
DDP_ON_BOTH float finite_or_zero(float value) noexcept {
  return float_of(pick_bits(is_finite(value), bits_of(value), 0));
}

/// By which the largest magnitudes are selected; NaN is above all.
DDP_ON_BOTH std::uint32_t magnitude_key(float value) noexcept { return bits_of(value) & 0x7fffffffU; }

/// The part of the keys that the first passes have decided.
struct Selected {
  std::uint32_t prefix = 0;  ///< the highest bits of the last key that is selected, others 0
  std::uint32_t left = 0;    ///< how many of the keys that begin so are selected
};
DDP_ON_BOTH std::uint32_t pass_shift(std::uint32_t pass) noexcept { return 8U * (kPasses - 1U - pass); }
/// Whether a key begins with what was decided before @p pass.
DDP_ON_BOTH bool begins_with(std::uint32_t key, std::uint32_t prefix, std::uint32_t pass) noexcept {
  return pass == 0 || (key ^ prefix) >> (pass_shift(pass) + 8U) == 0;
}
/// One more pass. @param histogram of the keys that begin with what is selected, by their next eight bits.
DDP_ON_BOTH Selected narrowed(Selected before, const std::uint32_t* histogram, std::uint32_t pass) noexcept {
  for (std::uint32_t bin = kBins; bin-- > 0;) {
    if (histogram[bin] >= before.left) return {before.prefix | bin << pass_shift(pass), before.left};
    before.left -= histogram[bin];
  }
  return before;
}

/// SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), the number of a given place.
DDP_ON_BOTH std::uint64_t random_bits(std::uint64_t seed, std::uint64_t place) noexcept {
  std::uint64_t mixed = seed + (place + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31U);
}

/// A number of mean 0 and variance 1, nearly normal: the sum of twelve uniform ones, which is exact, so that it has the
/// same bits everywhere. At most 6.
DDP_ON_BOTH float random_normal(std::uint64_t seed, std::uint64_t place) noexcept {
  std::int32_t sum = 0;
  for (std::uint64_t part = 0; part < 3; ++part) {
    const std::uint64_t bits = random_bits(seed, 3 * place + part);
    for (std::uint32_t shift = 0; shift < 64; shift += 16) sum += static_cast<std::int32_t>((bits >> shift) & 0xffffU);
  }
  constexpr std::int32_t kMean = 6 * 65535;  // of the sum
  return static_cast<float>(sum - kMean) * 0x1p-16F;
}

/// How much of a column's length must be left when those before it have been taken out of it: some hundred units of
/// float32's last place; less is rounding.
inline constexpr double kColumnNoise = 1e-5;

}  // namespace ddp::kernels
