// Turns CUresult into ddp::Error with the name that people search for ("CUDA_ERROR_OUT_OF_MEMORY (2)").
#pragma once

#include <string>
#include <string_view>

#include <ddp/error.hpp>

#include "cuda/driver_functions.hpp"

namespace ddp::cuda {

/// "CUDA_ERROR_OUT_OF_MEMORY (2)"; "CUresult (4711)" for one that the driver does not know.
std::string error_name(const DriverFunctions& driver, CUresult code);
std::string error_name(CUresult code);

/// "out of memory"
std::string error_text(const DriverFunctions& driver, CUresult code);

/// An Error whose cause and native code come from @p code.
Error cuda_error(std::string attempted, CUresult code);

/// Throws cuda_error(attempted, code) unless @p code is CUDA_SUCCESS.
inline void check(CUresult code, std::string_view attempted) {
  if (code != CUDA_SUCCESS) throw cuda_error(std::string(attempted), code);
}

/// For destructors: logs what failed, the first time in the process as a warning. A driver that is shutting down with
/// the process is no failure.
void log_failure(CUresult code, std::string_view attempted) noexcept;

}  // namespace ddp::cuda
