// The kernels on processors: the same results as the device code's, bit by bit but for the payloads of NaN.
#pragma once

#include "kernels/arguments.hpp"

namespace ddp::kernels::host {

void copy_f32_f32(const PieceArguments& arguments);
void copy_f32_f16(const PieceArguments& arguments);
void copy_f16_f32(const PieceArguments& arguments);
void copy_f32_bf16(const PieceArguments& arguments);
void copy_bf16_f32(const PieceArguments& arguments);
void copy_f32_e4m3(const PieceArguments& arguments);
void copy_e4m3_f32(const PieceArguments& arguments);
void copy_f32_e5m2(const PieceArguments& arguments);
void copy_e5m2_f32(const PieceArguments& arguments);
void copy_f16_f16(const PieceArguments& arguments);
void copy_bf16_bf16(const PieceArguments& arguments);
void copy_f64_f64(const PieceArguments& arguments);
void copy_raw(const PieceArguments& arguments);
void fill_1(const PieceArguments& arguments);
void fill_2(const PieceArguments& arguments);
void fill_4(const PieceArguments& arguments);
void fill_8(const PieceArguments& arguments);
void range(const RangeArguments& arguments);
void quantize(const QuantizeArguments& arguments);
void dequantize(const DequantizeArguments& arguments);
void selection_histogram(const SelectionArguments& arguments);
void selection_count(const SelectionArguments& arguments);
void selection_gather(const SelectionArguments& arguments);
void scatter_add(const ScatterArguments& arguments);
void scatter_zero(const ScatterArguments& arguments);
void add(const PieceArguments& arguments);
void copy_finite(const PieceArguments& arguments);
void low_rank_left(const LowRankArguments& arguments);
void low_rank_right(const LowRankArguments& arguments);
void low_rank_expand(const LowRankArguments& arguments);
void begin_factors(const FactorArguments& arguments);
void orthogonalize(const FactorArguments& arguments);
void check_finite(const FactorArguments& arguments);
void exact_add_f32(const ExactArguments& arguments);
void exact_add_f64(const ExactArguments& arguments);
void exact_add_f16(const ExactArguments& arguments);
void exact_add_bf16(const ExactArguments& arguments);
void exact_mean_f32(const ExactArguments& arguments);
void exact_mean_f64(const ExactArguments& arguments);
void exact_mean_f16(const ExactArguments& arguments);
void exact_mean_bf16(const ExactArguments& arguments);

}  // namespace ddp::kernels::host
