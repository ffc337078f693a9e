// The kernels of exact_sums.hpp on processors.
#include "kernels/exact_element.hpp"
#include "kernels/host_kernels.hpp"

namespace ddp::kernels::host {
namespace {

template <class Element>
void exact_add(const ExactArguments& arguments) {
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    const auto* const values = static_cast<const typename Element::Stored*>(arguments.values[piece]);
    std::int64_t* const sums = arguments.sums[piece];
    for (std::size_t i = 0; i < arguments.count[piece]; ++i) {
      if (!add_exactly(static_cast<double>(Element::load(values[i])), sums + 2 * i)) ++*arguments.broken[piece];
    }
  }
}

template <class Element>
void exact_mean(const ExactArguments& arguments) {
  const auto terms = static_cast<double>(*arguments.terms);
  for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
    auto* const values = static_cast<typename Element::Stored*>(arguments.values[piece]);
    const std::int64_t* const sums = arguments.sums[piece];
    const bool broken = *arguments.broken[piece] != 0;
    for (std::size_t i = 0; i < arguments.count[piece]; ++i) {
      values[i] = mean_of_terms<Element>(sums + 2 * i, terms, broken);
    }
  }
}

}  // namespace

void exact_add_f32(const ExactArguments& arguments) { exact_add<Float32Element>(arguments); }
void exact_add_f64(const ExactArguments& arguments) { exact_add<Float64Element>(arguments); }
void exact_add_f16(const ExactArguments& arguments) { exact_add<Float16Element>(arguments); }
void exact_add_bf16(const ExactArguments& arguments) { exact_add<BFloat16Element>(arguments); }
void exact_mean_f32(const ExactArguments& arguments) { exact_mean<Float32Element>(arguments); }
void exact_mean_f64(const ExactArguments& arguments) { exact_mean<Float64Element>(arguments); }
void exact_mean_f16(const ExactArguments& arguments) { exact_mean<Float16Element>(arguments); }
void exact_mean_bf16(const ExactArguments& arguments) { exact_mean<BFloat16Element>(arguments); }

}  // namespace ddp::kernels::host
