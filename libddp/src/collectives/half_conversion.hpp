// Conversions of the half types, inline and without branches, because the reduce kernels do them for every element: the
// compiler turns these into vector instructions, and calls to functions elsewhere into nothing of the kind. Always
// inline, since reduce_loops.hpp is compiled for several processors: a copy on its own could be any of theirs.
#pragma once

#include <cstdint>

#include <ddp/tensor_view.hpp>

namespace ddp::collectives {

/// yes where the condition holds, else no. With masks, because compilers turn nested ?: back into branches, and loops
/// with branches into scalar code.
[[gnu::always_inline]] inline std::uint32_t pick_bits(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

[[gnu::always_inline]] inline float half_to_float(BFloat16 value) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16U);
}

[[gnu::always_inline]] inline BFloat16 float_to_bfloat16(float value) noexcept {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t quiet_nan = (bits >> 16U) | 0x40U;
  // adding 0x7fff, or 0x8000 when the kept part is odd, carries into it exactly when round-to-nearest-even rounds up
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  return {static_cast<std::uint16_t>(pick_bits((bits & 0x7fffffffU) > 0x7f800000U, quiet_nan, rounded))};
}

[[gnu::always_inline]] inline float half_to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  const std::uint32_t special = 0x7f800000U | (magnitude << 13U);   // infinity and NaN: all exponent bits are set
  const std::uint32_t normal = (magnitude << 13U) + (112U << 23U);  // the exponent's bias is 127 instead of 15
  const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;  // subnormal: exact in float
  const std::uint32_t finite = pick_bits(magnitude < 0x400U, __builtin_bit_cast(std::uint32_t, tiny), normal);
  return __builtin_bit_cast(float, sign | pick_bits(magnitude >= 0x7c00U, special, finite));
}

[[gnu::always_inline]] inline Half float_to_half(float value) noexcept {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // below 2^-14 the result is subnormal, a multiple of 2^-24; adding 0.5 leaves it, rounded to nearest even, in the low
  // bits of the float's mantissa, because the last place of 0.5 is 2^-24
  const std::uint32_t tiny = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5F) -
                             __builtin_bit_cast(std::uint32_t, 0.5F);
  const std::uint32_t normal = ((magnitude + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U) - (112U << 10U);
  const std::uint32_t finite = pick_bits(magnitude < 0x38800000U, tiny, normal);
  const std::uint32_t special = pick_bits(magnitude > 0x7f800000U, 0x7e00U, 0x7c00U);  // NaN, infinity
  return {static_cast<std::uint16_t>(
      sign | pick_bits(magnitude >= 0x477ff000U, special, finite))};  // 65520 rounds to infinity
}

}  // namespace ddp::collectives
