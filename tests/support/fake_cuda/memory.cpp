#include "tests/support/fake_cuda/memory.hpp"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstring>

namespace fake_cuda {
namespace {

// cuMemAlloc: "The allocated memory is suitably aligned for any kind of variable"; in fact to 256 bytes (Best Practices
// Guide, Coalesced Access to Global Memory). As much again lies behind each block, so that running over is seen.
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

}  // namespace fake_cuda
