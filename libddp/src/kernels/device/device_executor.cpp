#include "kernels/device/device_executor.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "cuda/driver.hpp"
#include "kernels/arguments.hpp"

namespace ddp::kernels {
namespace {

const std::byte* checked(std::span<const std::byte> image, int device) {
  if (!image.empty()) return image.data();
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("loading libddp's kernels onto CUDA device {}", device),
               .cause = "this build of libddp has no device code",
               .hint = "configure where nvcc is (DDP_CUDA_ROOT), and build again"}};
}

}  // namespace

DeviceKernels::DeviceKernels(cuda::ContextPtr context, std::span<const std::byte> image)
    : context_(context), module_(context, checked(image, context->device())) {
  for (std::size_t i = 0; i < kKernels; ++i) functions_[i] = module_.function(kernel_table()[i].name);
}

void DeviceExecutor::launch(const Launch& launch) {
  const cuda::ContextScope scope(*kernels_.context());
  void* parameters[] = {const_cast<void*>(launch.argument)};
  const CUresult code = cuda::driver().launch_kernel(kernels_.function(launch.kernel), launch.blocks, 1, 1, kThreads, 1,
                                                     1, 0, stream_, parameters, nullptr);
  if (code == CUDA_SUCCESS) return;
  throw cuda::cuda_error(fmt::format("launching the kernel {} with {} blocks on CUDA device {}",
                                     kernel_table()[static_cast<std::size_t>(launch.kernel)].name, launch.blocks,
                                     kernels_.context()->device()),
                         code);
}

}  // namespace ddp::kernels
