// The kernels that modules find.
#pragma once

namespace fake_cuda {

/// Opens the libraries of FAKE_CUDA_KERNELS; null: none. False if one cannot be opened or has no kernels.
bool load_kernel_libraries(const char* files);

}  // namespace fake_cuda
