// The driver API's Initialization, Version, Device, Primary Context and Context Management.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"
#include "tests/support/fake_cuda/faults.hpp"
#include "tests/support/fake_cuda/memory.hpp"
#include "tests/support/fake_cuda/modules.hpp"

namespace fake_cuda {
namespace {

thread_local std::vector<Context*> current_contexts;

long number_of(const char* variable, long otherwise) {
  const char* text = getenv(variable);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

/// CUDA_VISIBLE_DEVICES: "If one of the indices is invalid, only the devices whose index precedes the invalid index are
/// visible" (Programming Guide, CUDA Environment Variables).
std::vector<int> visible_devices(int devices) {
  std::vector<int> visible;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < devices; ++i) visible.push_back(i);
    return visible;
  }
  while (*text != '\0') {
    char* end = nullptr;
    const long number = std::strtol(text, &end, 10);
    if (end == text || number < 0 || number >= devices) break;
    visible.push_back(static_cast<int>(number));
    text = *end == ',' ? end + 1 : end;
  }
  return visible;
}

/// The same for the same device in all processes, and different otherwise.
CUuuid uuid_of(int physical) {
  const char* host = getenv("FAKE_CUDA_HOST");
  CUuuid uuid{};
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : std::string_view(host == nullptr ? "" : host)) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  std::memcpy(uuid.bytes, &hash, sizeof hash);
  uuid.bytes[15] = static_cast<char>(physical);
  return uuid;
}

CUresult find_device(CUdevice handle, Device*& device) {
  if (handle < 0 || static_cast<std::size_t>(handle) >= state().devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  device = &state().devices[static_cast<std::size_t>(handle)];
  return CUDA_SUCCESS;
}

bool is_context(const Context* context) {
  for (const Context& known : state().contexts) {
    if (&known == context) return true;
  }
  return false;
}

}  // namespace

Context* current_context() { return current_contexts.empty() ? nullptr : current_contexts.back(); }

/// The double wants a current context for everything: each function's page lists CUDA_ERROR_INVALID_CONTEXT.
CUresult usable_context(Context*& context) {
  context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->failed;
}

extern "C" {

CUresult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(number_of("FAKE_CUDA_VERSION", CUDA_VERSION));
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
  static pid_t first = 0;
  static CallSite call_site("cuInit");
  const CUresult refused = call_site.enter();
  if (refused != CUDA_SUCCESS && refused != CUDA_ERROR_NOT_INITIALIZED) return refused;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(state().mutex);
  if (first != 0) return first == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  const std::vector<int> visible = visible_devices(static_cast<int>(number_of("FAKE_CUDA_DEVICES", 2)));
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  Settings& settings = state().settings;
  settings.concurrent_kernels =
      static_cast<int>(number_of("FAKE_CUDA_CONCURRENT_KERNELS", settings.concurrent_kernels));
  settings.jitter_seed = number_of("FAKE_CUDA_JITTER_SEED", 0);
  settings.jitter_us = number_of("FAKE_CUDA_JITTER_US", settings.jitter_us);
  if (const char* rules = getenv("FAKE_CUDA_FAULTS"); rules != nullptr && !faults().add(rules)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!load_kernel_libraries(getenv("FAKE_CUDA_KERNELS"))) return CUDA_ERROR_FILE_NOT_FOUND;
  const auto bytes = static_cast<std::size_t>(number_of("FAKE_CUDA_MEMORY_MIB", 512)) * 1024 * 1024;
  for (const int physical : visible) {
    Device& device = state().devices.emplace_back();
    device.number = static_cast<int>(state().devices.size()) - 1;
    device.physical = physical;
    state().contexts.emplace_back().device = &device;
    memory().add_device(bytes);
  }
  first = getpid();
  allow_calls();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_CUDA_CALL(cuDeviceGetCount);
  *count = static_cast<int>(state().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* handle, int number) {
  FAKE_CUDA_CALL(cuDeviceGet);
  Device* device = nullptr;
  *handle = number;
  return find_device(number, device);
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice handle) {
  FAKE_CUDA_CALL(cuDeviceGetName);
  Device* device = nullptr;
  if (const CUresult code = find_device(handle, device); code != CUDA_SUCCESS) return code;
  snprintf(name, static_cast<std::size_t>(bytes), "Fake CUDA device");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice handle) {
  FAKE_CUDA_CALL(cuDeviceGetUuid);
  Device* device = nullptr;
  if (const CUresult code = find_device(handle, device); code != CUDA_SUCCESS) return code;
  *uuid = uuid_of(device->physical);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice handle) {
  FAKE_CUDA_CALL(cuDeviceGetPCIBusId);
  Device* device = nullptr;
  if (const CUresult code = find_device(handle, device); code != CUDA_SUCCESS) return code;
  snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device->physical) + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice handle) {
  FAKE_CUDA_CALL(cuDeviceTotalMem);
  Device* device = nullptr;
  if (const CUresult code = find_device(handle, device); code != CUDA_SUCCESS) return code;
  *bytes = memory().total_bytes(device->number);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice handle) {
  FAKE_CUDA_CALL(cuDeviceGetAttribute);
  Device* device = nullptr;
  if (const CUresult code = find_device(handle, device); code != CUDA_SUCCESS) return code;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 8; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device->physical + 1; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device_handle) {
  FAKE_CUDA_CALL(cuDevicePrimaryCtxRetain);
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult code = find_device(device_handle, device); code != CUDA_SUCCESS) return code;
  Context& context = state().contexts[static_cast<std::size_t>(device->number)];
  ++context.retained;
  *handle = reinterpret_cast<CUcontext>(&context);
  return context.failed;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device_handle) {
  FAKE_CUDA_CALL(cuDevicePrimaryCtxRelease);
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult code = find_device(device_handle, device); code != CUDA_SUCCESS) return code;
  Context& context = state().contexts[static_cast<std::size_t>(device->number)];
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --context.retained;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  FAKE_CUDA_CALL(cuCtxGetCurrent);
  *handle = reinterpret_cast<CUcontext>(current_context());
  return CUDA_SUCCESS;
}

/// "If ctx is NULL then the current context is unbound ... replaces the top of the stack".
CUresult cuCtxSetCurrent(CUcontext handle) {
  FAKE_CUDA_CALL(cuCtxSetCurrent);
  auto* context = reinterpret_cast<Context*>(handle);
  if (context != nullptr && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current_contexts.empty()) current_contexts.pop_back();
  if (context != nullptr) current_contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  FAKE_CUDA_CALL(cuCtxPushCurrent);
  auto* context = reinterpret_cast<Context*>(handle);
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* handle) {
  FAKE_CUDA_CALL(cuCtxPopCurrent);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = reinterpret_cast<CUcontext>(current_contexts.back());
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_CUDA_CALL(cuCtxGetDevice);
  const Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  *device = context->device->number;
  return CUDA_SUCCESS;
}

/// "Blocks until the current context has completed all preceding requested tasks": invalid while one of its streams is
/// captured (Programming Guide, Prohibited and Unhandled Operations).
CUresult cuCtxSynchronize() {
  FAKE_CUDA_CALL(cuCtxSynchronize);
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  for (Stream* stream : context->streams) {
    if (stream->capture) return refuse_captured(*stream);
  }
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  return wait_for(lock, all_work(*context), *context);
}
}

}  // namespace fake_cuda
