// The kernels of exact sums (copies.hpp) on devices, a part of kernels.cu.
#pragma once

#include "kernels/device/pieces.cuh"
#include "kernels/exact_element.hpp"

namespace ddp::kernels {
namespace {

template <class Element>
__device__ void exact_add(const ExactArguments& arguments) {
  const Chunk<false> chunk(arguments);
  const auto* const values = static_cast<const typename Element::Stored*>(arguments.values[chunk.piece]) + chunk.first;
  std::int64_t* const sums = arguments.sums[chunk.piece] + 2 * chunk.first;
  unsigned long long broken = 0;
  for (unsigned int i = threadIdx.x; i < chunk.count; i += kThreads) {
    if (!add_exactly(static_cast<double>(Element::load(values[i])), sums + 2 * i)) ++broken;
  }
  if (broken != 0) atomicAdd(reinterpret_cast<unsigned long long*>(arguments.broken[chunk.piece]), broken);
}

template <class Element>
__device__ void exact_mean(const ExactArguments& arguments) {
  const Chunk<false> chunk(arguments);
  auto* const values = static_cast<typename Element::Stored*>(arguments.values[chunk.piece]) + chunk.first;
  const std::int64_t* const sums = arguments.sums[chunk.piece] + 2 * chunk.first;
  const bool broken = *arguments.broken[chunk.piece] != 0;
  const auto terms = static_cast<double>(*arguments.terms);
#pragma unroll 1
  for (unsigned int i = threadIdx.x; i < chunk.count; i += kThreads) {
    values[i] = mean_of_terms<Element>(sums + 2 * i, terms, broken);
  }
}

}  // namespace
}  // namespace ddp::kernels

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define DDP_EXACT(name, Element)                                                              \
  extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)                        \
      ddp_exact_add_##name(const __grid_constant__ ddp::kernels::ExactArguments arguments) {  \
    ddp::kernels::exact_add<ddp::kernels::Element>(arguments);                                \
  }                                                                                           \
  extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)                        \
      ddp_exact_mean_##name(const __grid_constant__ ddp::kernels::ExactArguments arguments) { \
    ddp::kernels::exact_mean<ddp::kernels::Element>(arguments);                               \
  }
// NOLINTEND(bugprone-macro-parentheses)

DDP_EXACT(f32, Float32Element)
DDP_EXACT(f64, Float64Element)
DDP_EXACT(f16, Float16Element)
DDP_EXACT(bf16, BFloat16Element)
