// The kernels: a thread for each element. Simple rather than fast; a matrix library would do this in a real program.
#include "digits/cuda/steps.hpp"

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name
#define DIGITS_KERNEL(Step, name)                                                    \
  extern "C" __global__ void name(const __grid_constant__ digits::cuda::Step step) { \
    const std::uint32_t element = blockIdx.x * blockDim.x + threadIdx.x;             \
    if (element < step.elements) step.at(element);                                   \
  }
// NOLINTEND(bugprone-macro-parentheses)

DIGITS_STEPS(DIGITS_KERNEL)
