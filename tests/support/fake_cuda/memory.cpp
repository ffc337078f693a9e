#include "tests/support/fake_cuda/memory.hpp"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"

namespace fake_cuda {
namespace {

// cuMemAlloc: "The allocated memory is suitably aligned for any kind of variable"; in fact to 256 bytes (Best Practices
// Guide, Coalesced Access to Global Memory). The same amount follows each block, so that overruns are noticed.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kQuarantineBytes = 32 * 1024 * 1024;

std::size_t block_of(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment; }

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

void Memory::add_device(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::lock_guard lock(mutex_);
  Arena& arena = arenas_.emplace_back();
  if (base == MAP_FAILED) return;  // a device without memory
  arena.base = reinterpret_cast<std::uintptr_t>(base);
  arena.bytes = bytes;
  arena.holes.emplace(arena.base, bytes);
}

std::uintptr_t Memory::take_hole(Arena& arena, std::size_t block) {
  for (const auto& [address, size] : arena.holes) {
    if (size < block) continue;
    const std::uintptr_t taken = address;
    const std::size_t rest = size - block;
    arena.holes.erase(taken);
    if (rest > 0) arena.holes.emplace(taken + block, rest);
    return taken;
  }
  return 0;
}

void Memory::make_hole(Arena& arena, std::uintptr_t address, std::size_t block) {
  auto [hole, added] = arena.holes.emplace(address, block);
  if (const auto next = std::next(hole); next != arena.holes.end() && address + block == next->first) {
    hole->second += next->second;
    arena.holes.erase(next);
  }
  if (hole != arena.holes.begin()) {
    const auto previous = std::prev(hole);
    if (previous->first + previous->second == address) {
      previous->second += hole->second;
      arena.holes.erase(hole);
    }
  }
}

void Memory::unquarantine(Arena& arena, std::size_t keep) {
  while (arena.quarantined > keep) {
    const auto [address, block] = arena.quarantine.front();
    arena.quarantine.pop_front();
    arena.quarantined -= block;
    make_hole(arena, address, block);
  }
}

void* Memory::allocate(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Arena& arena = arenas_[static_cast<std::size_t>(device)];
  const std::size_t block = block_of(bytes);
  std::uintptr_t address = take_hole(arena, block);
  if (address == 0) {
    unquarantine(arena, 0);
    address = take_hole(arena, block);
  }
  if (address == 0) return nullptr;
  arena.used += block;
  live_[address] = {.address = address,
                    .bytes = bytes,
                    .kind = MemoryKind::device,
                    .device = device,
                    .freeing = false,
                    .id = ++last_id_};
  ASAN_UNPOISON_MEMORY_REGION(pointer(address), block);
  std::memset(pointer(address), kPoison, block);
  ASAN_POISON_MEMORY_REGION(pointer(address), block);
  ASAN_UNPOISON_MEMORY_REGION(pointer(address), bytes);
  return pointer(address);
}

bool Memory::release(std::uintptr_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end() || found->second.kind != MemoryKind::device) return false;
  const std::size_t block = block_of(found->second.bytes);
  Arena& arena = arenas_[static_cast<std::size_t>(found->second.device)];
  std::memset(pointer(address), kPoison, found->second.bytes);
  ASAN_POISON_MEMORY_REGION(pointer(address), block);
  live_.erase(found);
  arena.used -= block;
  arena.quarantine.emplace_back(address, block);
  arena.quarantined += block;
  unquarantine(arena, kQuarantineBytes);
  return true;
}

bool Memory::mark_freeing(std::uintptr_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end() || found->second.kind != MemoryKind::device || found->second.freeing) return false;
  found->second.freeing = true;
  return true;
}

bool Memory::enter_host(void* address, std::size_t bytes, MemoryKind kind, int device) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  auto next = live_.lower_bound(begin);
  if (next != live_.end() && next->first < begin + bytes) return false;
  if (next != live_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes > begin) return false;
  }
  live_[begin] = {.address = begin, .bytes = bytes, .kind = kind, .device = device, .freeing = false, .id = ++last_id_};
  return true;
}

bool Memory::remove_host(void* address, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == live_.end() || found->second.kind != kind) return false;
  live_.erase(found);
  return true;
}

std::optional<Allocation> Memory::find(std::uintptr_t address, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(address);
  if (next == live_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  const std::size_t offset = address - allocation.address;
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) return std::nullopt;
  if (bytes == 0 && offset == allocation.bytes) return std::nullopt;
  return allocation;
}

bool Memory::in_arena(std::uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  for (const Arena& arena : arenas_) {
    if (address >= arena.base && address < arena.base + arena.bytes) return true;
  }
  return false;
}

std::size_t Memory::free_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const Arena& arena = arenas_[static_cast<std::size_t>(device)];
  return arena.bytes - arena.used;
}

std::size_t Memory::total_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return arenas_[static_cast<std::size_t>(device)].bytes;
}

std::size_t Memory::live_allocations() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

Memory& memory() {
  static Memory& instance = *new Memory;
  return instance;
}

// The driver API's Memory Management. Sources: the functions' pages; "API synchronization behavior"; Programming Guide,
// "Implicit Synchronization": page-locked and device memory allocation waits for all work. CUDA may wait there; the
// double always does, so that programs are ready for the worst case.

namespace {

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

/// Begins every call that allocates or frees: refused during captures, otherwise waits for the device.
CUresult begin_blocking(Lock& lock, Context*& context) {
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  return wait_for(lock, all_work(*context), *context);
}

/// One side of a copy: device memory or page-locked memory must still exist when the copy runs.
struct Side {
  std::uintptr_t address;
  std::optional<Allocation> allocation;  ///< none: pageable memory of the host
  bool in_arena;

  explicit Side(CUdeviceptr pointer, std::size_t bytes)
      : address(pointer), allocation(memory().find(pointer, bytes)), in_arena(memory().in_arena(pointer)) {}
  bool invalid() const { return in_arena && !allocation; }
  bool pageable() const { return !in_arena && !allocation; }
};

CUresult copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes) {
  // Freed since the call: the device faults.
  for (const std::uintptr_t address : {to, from}) {
    if (memory().in_arena(address) && !memory().find(address, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

WorkPtr copy_work(const char* label, std::function<CUresult()> run) {
  return std::make_shared<const Work>(Work{.label = label, .kind = WorkKind::copy, .run = std::move(run)});
}

CUresult attribute_of(const std::optional<Allocation>& allocation, CUpointer_attribute attribute, void* value,
                      CUdeviceptr pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      Context* context = allocation ? &state().contexts[static_cast<std::size_t>(allocation->device)] : nullptr;
      *static_cast<CUcontext*>(value) = reinterpret_cast<CUcontext>(context);
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = !allocation                              ? 0
                                       : allocation->kind == MemoryKind::device ? CU_MEMORYTYPE_DEVICE
                                                                                : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = allocation ? pointer : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void**>(value) =
          allocation && allocation->kind != MemoryKind::device ? reinterpret_cast<void*>(pointer) : nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(value) = allocation ? allocation->id : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<bool*>(value) = false; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) =
          allocation ? allocation->device : -2;  // -2: "invalid device", as cuda.h's CU_DEVICE_INVALID
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = allocation ? allocation->address : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(value) = allocation ? allocation->bytes : 0;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  FAKE_CUDA_CALL(cuMemGetInfo);
  const Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  *free_bytes = memory().free_bytes(context->device->number);
  *total_bytes = memory().total_bytes(context->device->number);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  FAKE_CUDA_CALL(cuMemAlloc);
  if (address == nullptr || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;  // "If bytesize is 0 ... CUDA_ERROR_INVALID_VALUE"
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = begin_blocking(lock, context); code != CUDA_SUCCESS) return code;
  void* pointer = memory().allocate(context->device->number, bytes);
  *address = address_of(pointer);
  return pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/// "This function waits for all commands that have been issued in the context": here those of the pointer's device.
CUresult cuMemFree(CUdeviceptr address) {
  FAKE_CUDA_CALL(cuMemFree);
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  const auto allocation = memory().find(address, 1);
  if (!allocation || allocation->address != address || allocation->freeing) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  const Context& owner = state().contexts[static_cast<std::size_t>(allocation->device)];
  if (const CUresult code = wait_for(lock, all_work(owner), owner); code != CUDA_SUCCESS) return code;
  return memory().release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// The address is known at once; the memory is usable in the stream's order.
CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream handle) {
  FAKE_CUDA_CALL(cuMemAllocAsync);
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (stream->capture) return refuse_captured(*stream);  // CUDA would make a graph node; no test here needs that
  void* pointer = memory().allocate(stream->context->device->number, bytes);
  *address = address_of(pointer);
  return pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  FAKE_CUDA_CALL(cuMemFreeAsync);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (stream->capture) return refuse_captured(*stream);
  if (!memory().mark_freeing(address)) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, copy_work("free", [address] {
    return memory().release(address) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
  }));
}

CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  FAKE_CUDA_CALL(cuMemHostAlloc);
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = begin_blocking(lock, context); code != CUDA_SUCCESS) return code;
  constexpr std::size_t kPage = 4096;
  *pointer = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (*pointer == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory().enter_host(*pointer, bytes, MemoryKind::pinned, context->device->number);
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* pointer) {
  FAKE_CUDA_CALL(cuMemFreeHost);
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = begin_blocking(lock, context); code != CUDA_SUCCESS) return code;
  if (!memory().remove_host(pointer, MemoryKind::pinned)) return CUDA_ERROR_INVALID_VALUE;
  std::free(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* pointer, std::size_t bytes, unsigned) {
  FAKE_CUDA_CALL(cuMemHostRegister);
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = begin_blocking(lock, context); code != CUDA_SUCCESS) return code;
  const bool entered = memory().enter_host(pointer, bytes, MemoryKind::registered, context->device->number);
  return entered ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* pointer) {
  FAKE_CUDA_CALL(cuMemHostUnregister);
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = begin_blocking(lock, context); code != CUDA_SUCCESS) return code;
  const bool removed = memory().remove_host(pointer, MemoryKind::registered);
  return removed ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  FAKE_CUDA_CALL(cuMemcpyAsync);
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (bytes == 0) return CUDA_SUCCESS;
  const Side target(to, bytes);
  const Side source(from, bytes);
  if (target.invalid() || source.invalid()) return CUDA_ERROR_INVALID_VALUE;
  if (source.pageable() && !stream->capture) {
    // "For transfers from pageable host memory to device memory, host memory is copied to a staging buffer
    // immediately".
    const auto* begin = reinterpret_cast<const unsigned char*>(from);
    auto staged = std::make_shared<const std::vector<unsigned char>>(begin, begin + bytes);
    return submit(*stream,
                  copy_work("memcpy", [to, staged] { return copy(to, address_of(staged->data()), staged->size()); }));
  }
  MarkerPtr marker;
  const CUresult code =
      submit(*stream, copy_work("memcpy", [to, from, bytes] { return copy(to, from, bytes); }), {}, &marker);
  if (code != CUDA_SUCCESS || !marker || !target.pageable()) return code;
  // "For transfers from device memory to pageable host memory, the function will return only once the copy has
  // completed."
  return wait_for(lock, {marker}, *stream->context);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count, CUstream handle) {
  FAKE_CUDA_CALL(cuMemsetD8Async);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (count == 0) return CUDA_SUCCESS;
  if (!memory().find(address, count)) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, copy_work("memset", [address, value, count] {
    if (!memory().find(address, count)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memset(reinterpret_cast<void*>(address), value, count);
    return CUDA_SUCCESS;
  }));
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  FAKE_CUDA_CALL(cuPointerGetAttribute);
  const auto allocation = memory().find(pointer, 1);
  // "If ptr was not allocated by, mapped by, or registered with a CUcontext": CUDA_ERROR_INVALID_VALUE.
  if (!allocation || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(allocation, attribute, value, pointer);
}

/// "Unlike cuPointerGetAttribute, this function will not return an error when the ptr encountered is not a valid CUDA
/// pointer. Instead, the attributes are assigned default NULL values and CUDA_SUCCESS is returned."
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer) {
  FAKE_CUDA_CALL(cuPointerGetAttributes);
  if (count == 0 || attributes == nullptr || values == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto allocation = memory().find(pointer, 1);
  for (unsigned i = 0; i < count; ++i) {
    const CUresult code = attribute_of(allocation, attributes[i], values[i], pointer);
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

int fake_cuda_touch(const void* address, std::size_t bytes) {
  if (bytes == 0 || memory().find(address_of(address), bytes)) return 1;
  if (Stream* stream = running_stream(); stream != nullptr) {
    const Lock lock(state().mutex);
    fail_context(*stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  return 0;
}
}

}  // namespace fake_cuda
