// Runs kernels on a CUDA device, in a stream.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "cuda/context.hpp"
#include "kernels/device/device_image.hpp"
#include "kernels/executor.hpp"

namespace ddp::kernels {

/// The kernels, loaded onto a device. One for each device of a process. Any thread, once made.
class DeviceKernels {
 public:
  /// Loads some 0.4 MiB onto the device, which takes milliseconds; on devices that the image has only PTX for, the
  /// driver compiles, which it does once for each user. Throws Error: unavailable (built without device code), else as
  /// cuda::Module.
  explicit DeviceKernels(cuda::ContextPtr context, std::span<const std::byte> image = device_image());

  const cuda::ContextPtr& context() const noexcept { return context_; }
  CUfunction function(Kernel kernel) const noexcept { return functions_[static_cast<std::size_t>(kernel)]; }

 private:
  cuda::ContextPtr context_;
  cuda::Module module_;
  std::array<CUfunction, kKernels> functions_{};
};

/// Launches into a stream of the kernels' device. Can be captured into a graph. Cheap to make.
class DeviceExecutor final : public Executor {
 public:
  /// @param kernels must live until the stream's work is over.
  DeviceExecutor(const DeviceKernels& kernels, CUstream stream) noexcept : kernels_(kernels), stream_(stream) {}

  /// Returns before the kernel runs; it reads the argument's struct at once, and the memory it points to later.
  void launch(const Launch& launch) override;

 private:
  const DeviceKernels& kernels_;
  CUstream stream_;
};

}  // namespace ddp::kernels
