// All kernels by name, with what runs them on processors. The names are those of the device code's functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddp::kernels {

enum class Kernel : std::uint8_t {
  copy_f32_f32,
  copy_f32_f16,
  copy_f16_f32,
  copy_f32_bf16,
  copy_bf16_f32,
  copy_f32_e4m3,
  copy_e4m3_f32,
  copy_f32_e5m2,
  copy_e5m2_f32,
  copy_f16_f16,
  copy_bf16_bf16,
  copy_f64_f64,
  copy_raw,
  fill_1,
  fill_2,
  fill_4,
  fill_8,
  range,
  quantize,
  dequantize,
  selection_histogram,
  selection_count,
  selection_gather,
  scatter_add,
  scatter_zero,
  add,
  copy_finite,
  low_rank_left,
  low_rank_right,
  low_rank_expand,
  begin_factors,
  orthogonalize,
  check_finite,
  exact_add_f32,
  exact_add_f64,
  exact_add_f16,
  exact_add_bf16,
  exact_mean_f32,
  exact_mean_f64,
  exact_mean_f16,
  exact_mean_bf16,
};
inline constexpr std::size_t kKernels = 41;

struct KernelEntry {
  const char* name;                   ///< "ddp_copy_f32_f16"
  void (*run)(const void* argument);  ///< on this processor, to the end, whatever the launch's grid would be
  std::size_t argument_bytes;
};

/// By Kernel.
std::span<const KernelEntry, kKernels> kernel_table() noexcept;

}  // namespace ddp::kernels
