#include "kernels/executor.hpp"

#include "kernels/arguments.hpp"
#include "kernels/host_kernels.hpp"

namespace ddp::kernels {

void HostExecutor::launch(const Launch& launch) {
  kernel_table()[static_cast<std::size_t>(launch.kernel)].run(launch.argument);
}

namespace {

template <class Arguments, void (*kRun)(const Arguments&)>
constexpr KernelEntry entry(const char* name) {
  return {.name = name,
          .run = [](const void* argument) { kRun(*static_cast<const Arguments*>(argument)); },
          .argument_bytes = sizeof(Arguments)};
}

template <void (*kRun)(const PieceArguments&)>
constexpr KernelEntry pieces(const char* name) {
  return entry<PieceArguments, kRun>(name);
}

constexpr KernelEntry kTable[kKernels] = {
    pieces<host::copy_f32_f32>("ddp_copy_f32_f32"),
    pieces<host::copy_f32_f16>("ddp_copy_f32_f16"),
    pieces<host::copy_f16_f32>("ddp_copy_f16_f32"),
    pieces<host::copy_f32_bf16>("ddp_copy_f32_bf16"),
    pieces<host::copy_bf16_f32>("ddp_copy_bf16_f32"),
    pieces<host::copy_f32_e4m3>("ddp_copy_f32_e4m3"),
    pieces<host::copy_e4m3_f32>("ddp_copy_e4m3_f32"),
    pieces<host::copy_f32_e5m2>("ddp_copy_f32_e5m2"),
    pieces<host::copy_e5m2_f32>("ddp_copy_e5m2_f32"),
    pieces<host::copy_f16_f16>("ddp_copy_f16_f16"),
    pieces<host::copy_bf16_bf16>("ddp_copy_bf16_bf16"),
    pieces<host::copy_f64_f64>("ddp_copy_f64_f64"),
    pieces<host::copy_raw>("ddp_copy_raw"),
    pieces<host::fill_1>("ddp_fill_1"),
    pieces<host::fill_2>("ddp_fill_2"),
    pieces<host::fill_4>("ddp_fill_4"),
    pieces<host::fill_8>("ddp_fill_8"),
    entry<RangeArguments, host::range>("ddp_range"),
    entry<QuantizeArguments, host::quantize>("ddp_quantize"),
    entry<DequantizeArguments, host::dequantize>("ddp_dequantize"),
    entry<SelectionArguments, host::selection_histogram>("ddp_selection_histogram"),
    entry<SelectionArguments, host::selection_count>("ddp_selection_count"),
    entry<SelectionArguments, host::selection_gather>("ddp_selection_gather"),
    entry<ScatterArguments, host::scatter_add>("ddp_scatter_add"),
    entry<ScatterArguments, host::scatter_zero>("ddp_scatter_zero"),
    pieces<host::add>("ddp_add"),
    pieces<host::copy_finite>("ddp_copy_finite"),
    entry<LowRankArguments, host::low_rank_left>("ddp_low_rank_left"),
    entry<LowRankArguments, host::low_rank_right>("ddp_low_rank_right"),
    entry<LowRankArguments, host::low_rank_expand>("ddp_low_rank_expand"),
    entry<FactorArguments, host::begin_factors>("ddp_begin_factors"),
    entry<FactorArguments, host::orthogonalize>("ddp_orthogonalize"),
    entry<FactorArguments, host::check_finite>("ddp_check_finite"),
    entry<ExactArguments, host::exact_add_f32>("ddp_exact_add_f32"),
    entry<ExactArguments, host::exact_add_f64>("ddp_exact_add_f64"),
    entry<ExactArguments, host::exact_add_f16>("ddp_exact_add_f16"),
    entry<ExactArguments, host::exact_add_bf16>("ddp_exact_add_bf16"),
    entry<ExactArguments, host::exact_mean_f32>("ddp_exact_mean_f32"),
    entry<ExactArguments, host::exact_mean_f64>("ddp_exact_mean_f64"),
    entry<ExactArguments, host::exact_mean_f16>("ddp_exact_mean_f16"),
    entry<ExactArguments, host::exact_mean_bf16>("ddp_exact_mean_bf16"),
};

}  // namespace

std::span<const KernelEntry, kKernels> kernel_table() noexcept { return kTable; }

}  // namespace ddp::kernels
