// The driver API's Module Management and Execution Control. A kernel is the function of the host that was registered by
// its name; it runs in the stream's thread, when the stream comes to it.
#include "tests/support/fake_cuda/modules.hpp"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <string>

#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"
#include "tests/support/fake_cuda/streams.hpp"

namespace fake_cuda {
namespace {

struct Module;
struct Function {
  Module* module;
  FakeCudaKernel kernel;
};
struct Module {
  Context* context;
  std::map<std::string, Function> functions{};
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, FakeCudaKernel> kernels;
};
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}
std::set<Module*>& modules() {
  static auto& instance = *new std::set<Module*>;
  return instance;
}
std::set<Function*>& functions() {
  static auto& instance = *new std::set<Function*>;
  return instance;
}

}  // namespace

std::size_t live_modules() { return modules().size(); }

bool load_kernel_libraries(const char* files) {
  std::string rest = files == nullptr ? "" : files;
  while (!rest.empty()) {
    const auto end = rest.find(':');
    const std::string file = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto listing = reinterpret_cast<decltype(&fake_cuda_kernels)>(dlsym(library, "fake_cuda_kernels"));
    if (listing == nullptr) return false;
    std::size_t count = 0;
    const FakeCudaKernel* kernels = listing(&count);
    fake_cuda_register_kernels(kernels, count);
  }
  return true;
}

extern "C" {

void fake_cuda_register_kernels(const FakeCudaKernel* kernels, std::size_t count) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (std::size_t i = 0; i < count; ++i) all.kernels.insert_or_assign(kernels[i].name, kernels[i]);
}

CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  FAKE_CUDA_CALL(cuModuleLoadData);
  constexpr unsigned kFatBinary = 0xba55ed50;  // fatbinary_section.h: the images that nvcc makes
  unsigned magic = 0;
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != kFatBinary) return CUDA_ERROR_INVALID_IMAGE;
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  // Loading code can wait for the device, and cannot be captured (Programming Guide, Lazy Loading).
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  if (const CUresult code = wait_for(lock, all_work(*context), *context); code != CUDA_SUCCESS) return code;
  auto* module = new Module{.context = context};
  modules().insert(module);
  *handle = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  FAKE_CUDA_CALL(cuModuleUnload);
  Lock lock(state().mutex);
  auto* module = reinterpret_cast<Module*>(handle);
  if (!modules().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  const CUresult code = wait_for(lock, all_work(*module->context), *module->context);
  if (modules().erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [name, function] : module->functions) functions().erase(&function);
  delete module;
  return code;
}

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
  FAKE_CUDA_CALL(cuModuleGetFunction);
  const Lock lock(state().mutex);
  auto* module = reinterpret_cast<Module*>(module_handle);
  if (!modules().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  Registry& all = registry();
  const std::lock_guard kernels_lock(all.mutex);
  const auto kernel = all.kernels.find(name);
  if (kernel == all.kernels.end()) return CUDA_ERROR_NOT_FOUND;
  const auto place = module->functions.try_emplace(name, Function{.module = module, .kernel = kernel->second}).first;
  functions().insert(&place->second);
  *handle = reinterpret_cast<CUfunction>(&place->second);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** parameters,
                        void** extra) {
  FAKE_CUDA_CALL(cuLaunchKernel);
  // Programming Guide, Technical Specifications per Compute Capability.
  constexpr unsigned kMostBlocks = 0x7fffffff;
  constexpr unsigned kMostBlocksYz = 65535;
  constexpr unsigned long kMostThreads = 1024;
  constexpr unsigned kMostThreadsZ = 64;
  const unsigned long threads = 1ul * block_x * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || grid_x > kMostBlocks || grid_y > kMostBlocksYz ||
      grid_z > kMostBlocksYz || threads > kMostThreads || block_z > kMostThreadsZ || parameters == nullptr ||
      extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  WorkPtr work;
  {
    const Lock lock(state().mutex);
    auto* function = reinterpret_cast<Function*>(handle);
    if (!functions().contains(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (function->module->context != current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    // Parameters are copied at the call.
    const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
    const FakeCudaKernel kernel = function->kernel;
    // In words, so that the struct is aligned.
    auto argument = std::make_shared<std::vector<std::max_align_t>>(kernel.bytes / sizeof(std::max_align_t) + 1);
    std::memcpy(argument->data(), bytes, kernel.bytes);
    work = std::make_shared<const Work>(
        Work{.label = kernel.name, .kind = WorkKind::kernel, .run = [run = kernel.run, argument] {
               run(argument->data());
               return CUDA_SUCCESS;
             }});
  }
  return launch(stream, std::move(work));
}
}

}  // namespace fake_cuda
