#include "digits/cuda/driver.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>

#include <cudaTypedefs.h>
#include <fmt/format.h>
#include <ddp/error.hpp>

// The file lies in the program as it is.
asm(R"(
  .pushsection .rodata
  .balign 64
  .hidden digits_device_code
  .globl digits_device_code
digits_device_code:
  .incbin ")" DIGITS_DEVICE_CODE R"("
  .popsection
)");
extern "C" const char digits_device_code[];

namespace digits::cuda {

// Types and symbols with their version: what cuda.h's short names mean changes from release to release.
struct DriverFunctions {
  PFN_cuGetErrorName_v6000 error_name;
  PFN_cuInit_v2000 init;
  PFN_cuDeviceGetCount_v2000 device_count;
  PFN_cuDeviceGet_v2000 device;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_context;
  PFN_cuDevicePrimaryCtxRelease_v11000 release_context;
  PFN_cuCtxSetCurrent_v4000 set_current;
  PFN_cuModuleLoadData_v2000 load_module;
  PFN_cuModuleUnload_v2000 unload_module;
  PFN_cuModuleGetFunction_v2000 function;
  PFN_cuStreamCreateWithPriority_v5050 create_stream;
  PFN_cuStreamDestroy_v4000 destroy_stream;
  PFN_cuStreamSynchronize_v2000 wait_for_stream;
  PFN_cuMemAlloc_v3020 allocate;
  PFN_cuMemFree_v3020 free;
  PFN_cuMemcpyAsync_v4000 copy;
  PFN_cuMemsetD8Async_v3020 fill;
  PFN_cuLaunchKernel_v4000 launch;
};

namespace {

constexpr unsigned int kThreads = 128;

[[noreturn]] void unavailable(std::string attempted, std::string cause) {
  throw ddp::Error{{.code = ddp::ErrorCode::unavailable,
                    .attempted = std::move(attempted),
                    .cause = std::move(cause),
                    .hint = "use --device cpu, or a machine with an NVIDIA driver"}};
}

const DriverFunctions& driver() {
  static const DriverFunctions functions = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) unavailable("opening CUDA's driver", dlerror());
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) unavailable("opening CUDA's driver", fmt::format("it has no {}", symbol));
    };
    DriverFunctions found{};
    find(found.error_name, "cuGetErrorName");
    find(found.init, "cuInit");
    find(found.device_count, "cuDeviceGetCount");
    find(found.device, "cuDeviceGet");
    find(found.retain_context, "cuDevicePrimaryCtxRetain");
    find(found.release_context, "cuDevicePrimaryCtxRelease_v2");
    find(found.set_current, "cuCtxSetCurrent");
    find(found.load_module, "cuModuleLoadData");
    find(found.unload_module, "cuModuleUnload");
    find(found.function, "cuModuleGetFunction");
    find(found.create_stream, "cuStreamCreateWithPriority");
    find(found.destroy_stream, "cuStreamDestroy_v2");
    find(found.wait_for_stream, "cuStreamSynchronize");
    find(found.allocate, "cuMemAlloc_v2");
    find(found.free, "cuMemFree_v2");
    find(found.copy, "cuMemcpyAsync");
    find(found.fill, "cuMemsetD8Async");
    find(found.launch, "cuLaunchKernel");
    return found;
  }();
  return functions;
}

void check(CUresult code, const std::string& attempted) {
  if (code == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver().error_name(code, &name);
  throw ddp::Error{{.code = ddp::ErrorCode::system,
                    .attempted = attempted,
                    .cause = "CUDA's driver failed",
                    .native = fmt::format("{} ({})", name == nullptr ? "CUresult" : name, static_cast<int>(code))}};
}

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

int Gpu::count() {
  check(driver().init(0), "starting CUDA's driver");
  int count = 0;
  check(driver().device_count(&count), "counting CUDA devices");
  return count;
}

Gpu::Gpu(int index) : driver_(driver()), index_(index) {
  const std::string attempted = fmt::format("preparing CUDA device {}", index);
  check(driver_.init(0), attempted);
  check(driver_.device(&device_, index), attempted);
  CUcontext context = nullptr;
  check(driver_.retain_context(&context, device_), attempted);
  check(driver_.set_current(context), attempted);
  check(driver_.load_module(&module_, digits_device_code), fmt::format("loading kernels onto CUDA device {}", index));
  check(driver_.create_stream(&stream_, CU_STREAM_NON_BLOCKING, 0), attempted);
}

Gpu::~Gpu() {
  // the program ends: what fails now has been told by the calls before
  driver_.wait_for_stream(stream_);
  for (const CUdeviceptr memory : memory_) driver_.free(memory);
  driver_.destroy_stream(stream_);
  driver_.unload_module(module_);
  driver_.release_context(device_);
}

void* Gpu::allocate_bytes(std::size_t bytes) {
  CUdeviceptr memory = 0;
  check(driver_.allocate(&memory, std::max<std::size_t>(bytes, 1)),
        fmt::format("allocating {} bytes on CUDA device {}", bytes, index_));
  memory_.push_back(memory);
  if (bytes != 0) check(driver_.fill(memory, 0, bytes, stream_), "filling memory of a CUDA device");
  return reinterpret_cast<void*>(memory);
}

void Gpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0)
    check(driver_.copy(address_of(to), address_of(from), bytes, stream_), "copying to or from a CUDA device");
}

void Gpu::launch(const char* name, const void* step, std::uint32_t elements) {
  CUfunction function = nullptr;
  check(driver_.function(&function, module_, name), fmt::format("looking up the kernel {}", name));
  void* parameters[] = {const_cast<void*>(step)};
  check(driver_.launch(function, (elements + kThreads - 1) / kThreads, 1, 1, kThreads, 1, 1, 0, stream_, parameters,
                       nullptr),
        fmt::format("launching the kernel {}", name));
}

void Gpu::wait() { check(driver_.wait_for_stream(stream_), fmt::format("waiting for CUDA device {}", index_)); }

}  // namespace digits::cuda
