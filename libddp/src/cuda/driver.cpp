#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <atomic>

#include <fmt/format.h>

#include "base/log.hpp"

namespace ddp::cuda {
namespace {

constexpr auto kLibrary = "libcuda.so.1";
constexpr int kOldest = 12000;

[[noreturn]] void fail(std::string cause, std::string native, std::string hint) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "opening CUDA's driver library",
               .cause = std::move(cause),
               .native = std::move(native),
               .hint = std::move(hint)}};
}

void* open_library(const base::Environment& environment) {
  if (void* loaded = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  const std::string chosen = environment.text("DDP_CUDA_LIBRARY");
  if (!chosen.empty()) {
    if (void* library = dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    fail(fmt::format("DDP_CUDA_LIBRARY: {}", dlerror()), {}, "correct or unset DDP_CUDA_LIBRARY");
  }
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  fail(fmt::format("the process has loaded none, DDP_CUDA_LIBRARY is not set, and the loader says: {}", dlerror()), {},
       "it comes with NVIDIA's driver: does nvidia-smi work on this node? In containers, pass the GPUs in");
}

std::string file_of(void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kLibrary;
}

}  // namespace

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Driver::Driver(const base::Environment& environment) {
  void* library = open_library(environment);
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    void* found = dlsym(library, symbol);
    if (found == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", symbol);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
#define DDP_CUDA_FIND(member, type, symbol) find(member, symbol);
  DDP_CUDA_FUNCTIONS(DDP_CUDA_FIND)
#undef DDP_CUDA_FIND
  // The version first: that a driver is old says more than which of its functions are missing.
  if (driver_get_version == nullptr) {
    fail(fmt::format("the library that was found for {} has no cuDriverGetVersion", kLibrary), {},
         "it is not a driver library of CUDA; see DDP_CUDA_LIBRARY and LD_LIBRARY_PATH");
  }
  file_ = file_of(reinterpret_cast<void*>(driver_get_version));
  if (const CUresult code = driver_get_version(&version_); code != CUDA_SUCCESS) {
    fail(fmt::format("{} does not report its version", file_), fmt::format("CUresult ({})", static_cast<int>(code)),
         "does nvidia-smi work on this node?");
  }
  if (version_ < kOldest) {
    fail(fmt::format("{} supports CUDA {} at most, and libddp needs {}", file_, version_text(version_),
                     version_text(kOldest)),
         {}, "update NVIDIA's driver to 525 or newer");
  }
  if (!missing.empty()) {
    fail(fmt::format("{} (CUDA {}) has no {}", file_, version_text(version_), missing), {},
         "reinstall NVIDIA's driver, or correct DDP_CUDA_LIBRARY");
  }
  if (const CUresult code = init(0); code != CUDA_SUCCESS) {
    fail(fmt::format("{} (CUDA {}) does not start: {}", file_, version_text(version_), error_text(*this, code)),
         error_name(*this, code),
         code == CUDA_ERROR_NOT_INITIALIZED ? "a forked process cannot use the CUDA of its parent: start it by exec"
                                            : "does nvidia-smi work on this node?");
  }
  base::log(base::LogLevel::debug, "CUDA's driver library is {}, for CUDA {}", file_, version_text(version_));
}

const Driver& driver() {
  static const Driver instance{base::Environment::process()};
  return instance;
}

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
