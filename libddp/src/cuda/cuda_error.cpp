#include "cuda/cuda_error.hpp"

#include <atomic>

#include <fmt/format.h>

#include "base/log.hpp"
#include "cuda/driver.hpp"

namespace ddp::cuda {
namespace {

ErrorCode code_of(CUresult code) {
  switch (code) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE: return ErrorCode::invalid_argument;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return ErrorCode::unavailable;
    default: return ErrorCode::system;
  }
}

/// What can be done, for the codes that users meet. Names as in cuda.h's CUresult, whose comments say what they mean.
const char* hint_of(CUresult code) {
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY: return "use less memory on this device, or find who else uses it with nvidia-smi";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "the device is in exclusive mode and another process has it, or it is being reset; see nvidia-smi";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
      return "an earlier kernel of this process failed, maybe one of the program's own; compute-sanitizer finds it; "
             "the "
             "process cannot use this device any more";
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
      return "the device has a fault: look for Xid in the kernel's log, and take the node out of use";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return "this cannot be done while a stream is captured into a graph";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: return "libddp was not built for this GPU or driver; update one of them";
    default: return "";
  }
}

}  // namespace

std::string error_name(const DriverFunctions& driver, CUresult code) {
  const char* name = nullptr;
  if (driver.get_error_name(code, &name) != CUDA_SUCCESS || name == nullptr) name = "CUresult";
  return fmt::format("{} ({})", name, static_cast<int>(code));
}

std::string error_name(CUresult code) { return error_name(driver(), code); }

std::string error_text(const DriverFunctions& driver, CUresult code) {
  const char* text = nullptr;
  if (driver.get_error_string(code, &text) != CUDA_SUCCESS || text == nullptr) text = "the driver does not know why";
  return text;
}

Error cuda_error(std::string attempted, CUresult code) {
  return Error{{.code = code_of(code),
                .attempted = std::move(attempted),
                .cause = error_text(driver(), code),
                .native = error_name(code),
                .hint = hint_of(code)}};
}

void log_failure(CUresult code, std::string_view attempted) noexcept {
  static std::atomic<bool> told = false;
  if (code == CUDA_SUCCESS || code == CUDA_ERROR_DEINITIALIZED) return;
  try {
    // A context that has failed fails the destruction of all that was made in it: one line is enough.
    const auto level = told.exchange(true) ? base::LogLevel::debug : base::LogLevel::warning;
    base::log(level, "{}", cuda_error(std::string(attempted), code).what());
  } catch (...) {  // no memory for a line
  }
}

}  // namespace ddp::cuda
