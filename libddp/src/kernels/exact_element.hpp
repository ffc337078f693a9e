// Sums of integers instead of floating-point numbers, which do not depend on the order of their terms: one element, for
// processors and devices.
#pragma once

#include <cstdint>

#include "kernels/element.hpp"

namespace ddp::kernels {

/// A sum is high * 2^-20 + low * 2^-64. A term has 43 bits and a sign in high, 44 bits in low, which leaves room for
/// 2^19 terms in 64 bits.
inline constexpr std::uint32_t kLowBits = 44;
inline constexpr double kHighUnits = 0x1p20;
inline constexpr double kLowUnits = 0x1p64;
inline constexpr double kTooLarge = 0x1p23;

/// One more term, rounded to a multiple of 2^-64. @return whether it has a place there: else nothing is changed.
DDP_ON_BOTH bool add_exactly(double value, std::int64_t* sum) noexcept {
  if (!((value < 0 ? -value : value) < kTooLarge)) return false;
  // conversions truncate: high is rounded toward zero, and low, which has the value's sign, to nearest
  const auto high = static_cast<std::int64_t>(value * kHighUnits);
  const double rest = value - static_cast<double>(high) / kHighUnits;  // exact: multiples of the value's last bit
  sum[0] += high;
  sum[1] += static_cast<std::int64_t>(rest * kLowUnits + (value < 0 ? -0.5 : 0.5));
  return true;
}

DDP_ON_BOTH int leading_zeros(std::uint64_t value) noexcept {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(value));
#else
  return __builtin_clzll(value);
#endif
}

/// A sum as a double, rounded once, to nearest, ties to even.
DDP_ON_BOTH double exact_sum(const std::int64_t* sum) noexcept {
  // in units of 2^-64: top * 2^44 + rest, then as a number of 128 bits
  const std::int64_t top = sum[0] + (sum[1] >> kLowBits);
  const std::uint64_t rest = static_cast<std::uint64_t>(sum[1]) & ((std::uint64_t{1} << kLowBits) - 1);
  auto high = static_cast<std::uint64_t>(top >> (64 - kLowBits));
  std::uint64_t low = static_cast<std::uint64_t>(top) << kLowBits | rest;
  const double sign = top < 0 ? -1 : 1;
  if (top < 0) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1 : 0);
  }
  if (high == 0) return sign * static_cast<double>(low) / kLowUnits;
  // its first 64 bits, the last of which stands for all that follow: a double has 53, so that it decides ties only
  const int zeros = leading_zeros(high);  // at least 19: the sum is below 2^43
  const std::uint64_t first = high << zeros | low >> (64 - zeros) | ((low << zeros) != 0 ? 1 : 0);
  const double unit = static_cast<double>(std::uint64_t{1} << (64 - zeros));
  return sign * static_cast<double>(first) * unit / kLowUnits;
}

/// The mean of a sum's terms, rounded to double, then to its format; NaN if one of them had no place in it.
template <class Element>
DDP_ON_BOTH typename Element::Stored mean_of_terms(const std::int64_t* sum, double terms, bool broken) noexcept {
  const double mean = broken ? static_cast<double>(float_of(0x7fc00000U)) : exact_sum(sum) / terms;
  return Element::store(static_cast<typename Element::Value>(mean));
}

}  // namespace ddp::kernels
