// Tests of kernels run on the double of CUDA's driver, with the kernels' functions for processors; or on a real device,
// which DDP_TEST_GPU=1 asks for (scripts/test-gpu).
#pragma once

#include <dlfcn.h>

#include "kernels/executor.hpp"
#include "support/checkout.hpp"
#include "support/fake_cuda/fake_cuda.hpp"

namespace ddp {

inline bool testing_with_fake_cuda() { return std::getenv("DDP_TEST_GPU") == nullptr; }

/// Before CUDA's driver is used. Idempotent.
inline void use_cuda_under_test() {
  static const bool done = [] {
    if (!testing_with_fake_cuda()) return true;
    const std::string file = test::built_file("lib/fake_cuda/libcuda.so.1");
    setenv("DDP_CUDA_LIBRARY", file.c_str(), 1);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    auto* const registers =
        reinterpret_cast<decltype(&fake_cuda_register_kernels)>(dlsym(library, "fake_cuda_register_kernels"));
    static std::vector<FakeCudaKernel> kernels;  // the double keeps the names only, which are literals
    for (const kernels::KernelEntry& entry : kernels::kernel_table()) {
      kernels.push_back({.name = entry.name, .run = entry.run, .bytes = entry.argument_bytes});
    }
    registers(kernels.data(), kernels.size());
    return true;
  }();
  (void)done;
}

}  // namespace ddp
