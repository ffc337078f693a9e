// CUDA's driver library (libcuda.so.1, a part of the driver), opened when first needed: nothing links it, so one build
// of libddp runs with CUDA 12, with CUDA 13 and without either.
#pragma once

#include <string>

#include "base/env_table.hpp"
#include "cuda/driver_functions.hpp"

namespace ddp::cuda {

/// The opened library: its functions, and where they are from. Looked for in this order: the libcuda.so.1 that the
/// process has loaded already (PyTorch's), DDP_CUDA_LIBRARY, the loader's. Never closed. Immutable: any thread.
class Driver : public DriverFunctions {
 public:
  /// Opens and initializes it (cuInit). Throws Error(unavailable) that names every place and what is wrong there: no
  /// library, a symbol missing, older than CUDA 12.0, or a driver that does not start.
  explicit Driver(const base::Environment& environment);

  const std::string& file() const noexcept { return file_; }  ///< where the loader found it
  int version() const noexcept { return version_; }           ///< of CUDA that the driver supports: 12040 is 12.4

 private:
  std::string file_;
  int version_ = 0;
};

/// The process's driver, opened at the first call. Throws as the constructor does, then tries anew at the next call.
const Driver& driver();

/// "12.4" of 12040.
std::string version_text(int version);

}  // namespace ddp::cuda
