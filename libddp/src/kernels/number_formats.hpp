// Conversions of the narrow floating-point formats, for processors and devices: one text, so that both give the same
// numbers. Inline and without branches, because they are done for every element: compilers turn them into vector
// instructions. Always inline, since loops are compiled for several processors: a copy on its own could be any of
// theirs.
//
// To nearest, ties to even; subnormal numbers are kept; NaN stays NaN, with a payload that is not specified. What is
// too large becomes infinity in float16 and bfloat16 (IEEE 754). In the 8-bit formats (OCP 8-bit Floating Point
// Specification 1.0) finite values saturate at the largest number, as in its saturating mode, but infinity stays
// visible to who looks for gradients that overflowed: as infinity in E5M2, as NaN in E4M3, which has no infinity.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DDP_ON_BOTH __host__ __device__ __forceinline__
#else
#define DDP_ON_BOTH inline __attribute__((always_inline))
#endif

namespace ddp::kernels {

DDP_ON_BOTH std::uint32_t bits_of(float value) noexcept {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}

DDP_ON_BOTH float float_of(std::uint32_t bits) noexcept {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

/// yes where the condition holds, else no. With masks, because compilers turn nested ?: back into branches, and loops
/// with branches into scalar code.
DDP_ON_BOTH std::uint32_t pick_bits(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

DDP_ON_BOTH float bfloat16_to_float(std::uint16_t value) noexcept {
  return float_of(static_cast<std::uint32_t>(value) << 16U);
}

DDP_ON_BOTH std::uint16_t float_to_bfloat16(float value) noexcept {
#ifdef __CUDA_ARCH__
  std::uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
#else
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t quiet_nan = (bits >> 16U) | 0x40U;
  // adding 0x7fff, or 0x8000 when the kept part is odd, carries into it exactly when round-to-nearest-even rounds up
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  return static_cast<std::uint16_t>(pick_bits((bits & 0x7fffffffU) > 0x7f800000U, quiet_nan, rounded));
#endif
}

DDP_ON_BOTH float float16_to_float(std::uint16_t value) noexcept {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
  return result;
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16U;
  const std::uint32_t magnitude = value & 0x7fffU;
  const std::uint32_t special = 0x7f800000U | (magnitude << 13U);   // infinity and NaN: all exponent bits are set
  const std::uint32_t normal = (magnitude << 13U) + (112U << 23U);  // the exponent's bias is 127 instead of 15
  const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;  // subnormal: exact in float
  const std::uint32_t finite = pick_bits(magnitude < 0x400U, bits_of(tiny), normal);
  return float_of(sign | pick_bits(magnitude >= 0x7c00U, special, finite));
#endif
}

DDP_ON_BOTH std::uint16_t float_to_float16(float value) noexcept {
#ifdef __CUDA_ARCH__
  std::uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
#else
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // below 2^-14 the result is subnormal, a multiple of 2^-24; adding 0.5 leaves it, rounded to nearest even, in the low
  // bits of the float's mantissa, because the last place of 0.5 is 2^-24
  const std::uint32_t tiny = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  const std::uint32_t normal = ((magnitude + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U) - (112U << 10U);
  const std::uint32_t finite = pick_bits(magnitude < 0x38800000U, tiny, normal);
  const std::uint32_t special = pick_bits(magnitude > 0x7f800000U, 0x7e00U, 0x7c00U);  // NaN, infinity
  return static_cast<std::uint16_t>(sign |
                                    pick_bits(magnitude >= 0x477ff000U, special, finite));  // 65520 rounds to infinity
#endif
}

/// The OCP 8-bit formats: a sign, an exponent, and kMantissaBits. Codes are without the sign.
struct E4M3 {
  static constexpr std::uint32_t kMantissaBits = 3;
  static constexpr std::uint32_t kBias = 7;
  static constexpr std::uint32_t kLargest = 0x7e;   ///< 448
  static constexpr std::uint32_t kInfinity = 0x7f;  ///< NaN: there is no infinity
  static constexpr std::uint32_t kNan = 0x7f;
  static constexpr float kSmallest = 0x1p-9F;  ///< the last place of subnormal numbers
};
struct E5M2 {
  static constexpr std::uint32_t kMantissaBits = 2;
  static constexpr std::uint32_t kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7b;  ///< 57344
  static constexpr std::uint32_t kInfinity = 0x7c;
  static constexpr std::uint32_t kNan = 0x7e;
  static constexpr float kSmallest = 0x1p-16F;
};

template <class Format>
DDP_ON_BOTH std::uint8_t float_to_float8(float value) noexcept {
  constexpr std::uint32_t kDropped = 23U - Format::kMantissaBits;
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 24U) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // as in float_to_float16: the last place of kOne is that of the format's subnormal numbers
  constexpr float kOne = Format::kSmallest * 0x1p23F;
  const std::uint32_t tiny = bits_of(float_of(magnitude) + kOne) - bits_of(kOne);
  constexpr std::uint32_t kAlmostHalf = (1U << (kDropped - 1U)) - 1U;
  const std::uint32_t normal = ((magnitude + kAlmostHalf + ((magnitude >> kDropped) & 1U)) >> kDropped) -
                               ((127U - Format::kBias) << Format::kMantissaBits);
  const std::uint32_t finite = pick_bits(magnitude < ((128U - Format::kBias) << 23U), tiny, normal);
  const std::uint32_t bounded = pick_bits(finite > Format::kLargest, Format::kLargest, finite);
  const std::uint32_t special = pick_bits(magnitude > 0x7f800000U, Format::kNan, Format::kInfinity);
  return static_cast<std::uint8_t>(sign | pick_bits(magnitude >= 0x7f800000U, special, bounded));
}

template <class Format>
DDP_ON_BOTH float float8_to_float(std::uint8_t value) noexcept {
  constexpr std::uint32_t kAdded = 23U - Format::kMantissaBits;
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x80U) << 24U;
  const std::uint32_t magnitude = value & 0x7fU;
  const std::uint32_t normal = (magnitude << kAdded) + ((127U - Format::kBias) << 23U);
  const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * Format::kSmallest;
  const std::uint32_t finite = pick_bits(magnitude < (1U << Format::kMantissaBits), bits_of(tiny), normal);
  // what is beyond the largest number: NaN, and E5M2's infinity
  const std::uint32_t special =
      0x7f800000U | pick_bits(Format::kInfinity != Format::kNan, (magnitude << kAdded) & 0x7fffffU, 0x400000U);
  return float_of(sign | pick_bits(magnitude > Format::kLargest, special, finite));
}

}  // namespace ddp::kernels
