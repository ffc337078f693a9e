#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "cuda/cuda_error.hpp"

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
         "it is no driver library of CUDA; see DDP_CUDA_LIBRARY and LD_LIBRARY_PATH");
  }
  file_ = file_of(reinterpret_cast<void*>(driver_get_version));
  if (const CUresult code = driver_get_version(&version_); code != CUDA_SUCCESS) {
    fail(fmt::format("{} does not tell its version", file_), fmt::format("CUresult ({})", static_cast<int>(code)),
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

}  // namespace ddp::cuda
