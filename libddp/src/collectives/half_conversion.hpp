// Conversions of the narrow types for the reduce kernels: those of kernels/number_formats.hpp, by type.
#pragma once

#include <ddp/tensor_view.hpp>

#include "kernels/number_formats.hpp"

namespace ddp::collectives {

using kernels::pick_bits;

[[gnu::always_inline]] inline float narrow_to_float(BFloat16 value) noexcept {
  return kernels::bfloat16_to_float(value.bits);
}
[[gnu::always_inline]] inline BFloat16 float_to_bfloat16(float value) noexcept {
  return {kernels::float_to_bfloat16(value)};
}
[[gnu::always_inline]] inline float narrow_to_float(Half value) noexcept {
  return kernels::float16_to_float(value.bits);
}
[[gnu::always_inline]] inline Half float_to_half(float value) noexcept { return {kernels::float_to_float16(value)}; }
[[gnu::always_inline]] inline float narrow_to_float(Float8E4M3 value) noexcept {
  return kernels::float8_to_float<kernels::E4M3>(value.bits);
}
[[gnu::always_inline]] inline Float8E4M3 float_to_e4m3(float value) noexcept {
  return {kernels::float_to_float8<kernels::E4M3>(value)};
}
[[gnu::always_inline]] inline float narrow_to_float(Float8E5M2 value) noexcept {
  return kernels::float8_to_float<kernels::E5M2>(value.bits);
}
[[gnu::always_inline]] inline Float8E5M2 float_to_e5m2(float value) noexcept {
  return {kernels::float_to_float8<kernels::E5M2>(value)};
}

}  // namespace ddp::collectives
