// Conversions of the half types for the reduce kernels: those of kernels/number_formats.hpp, by type.
#pragma once

#include <cstdint>

#include <ddp/tensor_view.hpp>

#include "kernels/number_formats.hpp"

namespace ddp::collectives {

using kernels::pick_bits;

[[gnu::always_inline]] inline float half_to_float(BFloat16 value) noexcept {
  return kernels::bfloat16_to_float(value.bits);
}
[[gnu::always_inline]] inline BFloat16 float_to_bfloat16(float value) noexcept {
  return {kernels::float_to_bfloat16(value)};
}
[[gnu::always_inline]] inline float half_to_float(Half value) noexcept { return kernels::float16_to_float(value.bits); }
[[gnu::always_inline]] inline Half float_to_half(float value) noexcept { return {kernels::float_to_float16(value)}; }

}  // namespace ddp::collectives
