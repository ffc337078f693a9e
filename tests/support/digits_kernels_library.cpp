// The kernels of the digits on processors, for the double of CUDA's driver (FAKE_CUDA_KERNELS).
#include <array>
#include <cstddef>

#include "digits/cuda/steps.hpp"
#include "support/fake_cuda/fake_cuda.hpp"

namespace {

template <class Step>
void run(const void* argument) {
  const Step& step = *static_cast<const Step*>(argument);
  for (std::uint32_t element = 0; element < step.elements; ++element) step.at(element);
}

#define DIGITS_ENTRY(Step, name) FakeCudaKernel{#name, &run<digits::cuda::Step>, sizeof(digits::cuda::Step)},
constexpr std::array kKernels{DIGITS_STEPS(DIGITS_ENTRY)};

}  // namespace

extern "C" [[gnu::visibility("default")]] const FakeCudaKernel* fake_cuda_kernels(std::size_t* count) {
  *count = kKernels.size();
  return kKernels.data();
}
