// The kernels' functions for processors as a library: for the double of CUDA's driver (FAKE_CUDA_KERNELS), and for
// tests/gpu, which compares devices with them. Needs nothing but a compiler.
#include <array>
#include <cstddef>

#include "kernels/executor.hpp"

// as in fake_cuda.hpp, which needs cuda.h
struct FakeCudaKernel {
  const char* name;
  void (*run)(const void* argument);
  std::size_t bytes;
};

extern "C" [[gnu::visibility("default")]] const FakeCudaKernel* fake_cuda_kernels(std::size_t* count) {
  static const auto kernels = [] {
    std::array<FakeCudaKernel, ddp::kernels::kKernels> all{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const ddp::kernels::KernelEntry& entry = ddp::kernels::kernel_table()[i];
      all[i] = {.name = entry.name, .run = entry.run, .bytes = entry.argument_bytes};
    }
    return all;
  }();
  *count = kernels.size();
  return kernels.data();
}
