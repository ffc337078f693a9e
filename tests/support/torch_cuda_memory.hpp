// For torch_cuda_double.cpp: calls of the double of CUDA's driver, and what becomes of PyTorch's memory on its devices.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace torch_cuda {

template <class... Arguments>
int call(const char* function, Arguments... arguments) {
  static void* const library = dlopen(std::getenv("DDP_CUDA_LIBRARY"), RTLD_NOW);
  auto* const found = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, function));
  TORCH_CHECK(found != nullptr, "the double of CUDA has no ", function);
  return found(arguments...);
}

template <class... Arguments>
void must(const char* function, Arguments... arguments) {
  const int code = call(function, arguments...);
  TORCH_CHECK(code == 0, function, " returns ", code);
}

inline constexpr std::size_t kDevices = 8;

inline void* context_of(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::array<void*, kDevices> contexts{};
  const std::lock_guard lock(mutex);
  void*& context = contexts.at(static_cast<std::size_t>(index));
  if (context == nullptr) {
    int device = 0;
    must("cuInit", 0U);
    must("cuDeviceGet", &device, static_cast<int>(index));
    must("cuDevicePrimaryCtxRetain", &context, device);
  }
  return context;
}

/// The driver's current context, as long as it lives.
class InContext {
 public:
  explicit InContext(c10::DeviceIndex index) { must("cuCtxPushCurrent_v2", context_of(index)); }
  InContext& operator=(InContext&&) = delete;
  ~InContext() {
    void* context = nullptr;
    call("cuCtxPopCurrent_v2", &context);
  }
};

/// Memory that goes back when its own stream has come to the end of its use there and in other streams.
struct Block {
  c10::DeviceIndex device;
  std::uint64_t address;
  void* stream;
  std::set<void*> others;
};

inline void give_back(const Block& block) {
  const InContext context(block.device);
  for (void* const other : block.others) {
    void* event = nullptr;
    must("cuEventCreate", &event, 0U);
    must("cuEventRecord", event, other);
    must("cuStreamWaitEvent", block.stream, event, 0U);
    must("cuEventDestroy_v2", event);
  }
  must("cuMemFreeAsync", block.address, block.stream);
}

/// Of PyTorch's allocator: memory is not touched before the next allocation in its stream, which may get it.
class FreeBlocks {
 public:
  void add(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mutex_);
    blocks_[{block->device, block->stream}].push_back(std::move(block));
  }
  void give_back_those_of(c10::DeviceIndex device, void* stream) {
    std::vector<std::unique_ptr<Block>> taken;
    {
      const std::lock_guard lock(mutex_);
      taken.swap(blocks_[{device, stream}]);
    }
    for (const auto& block : taken) give_back(*block);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, void*>, std::vector<std::unique_ptr<Block>>> blocks_;
};

inline FreeBlocks& free_blocks() {
  static auto* const blocks = new FreeBlocks;  // tensors may outlive the end of main
  return *blocks;
}

inline void free_block(void* memory) { free_blocks().add(std::unique_ptr<Block>(static_cast<Block*>(memory))); }

}  // namespace torch_cuda
