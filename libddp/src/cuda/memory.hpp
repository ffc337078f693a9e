// Owners of memory: on a device, and of the host's that devices reach fast (page-locked).
#pragma once

#include <cstddef>
#include <span>

#include "cuda/context.hpp"

namespace ddp::cuda {

/// Device memory from cuMemAlloc, aligned to 256 bytes. Move-only. Allocating and freeing can wait for all work on the
/// device, so neither belongs where a stuck kernel must not hold up the caller.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// @p bytes > 0. Throws Error.
  DeviceMemory(ContextPtr context, std::size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  CUdeviceptr get() const noexcept { return address_; }
  void* pointer() const noexcept { return reinterpret_cast<void*>(address_); }  ///< as frameworks write it
  std::size_t size_bytes() const noexcept { return bytes_; }

 private:
  ContextPtr context_;
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
};

/// Page-locked memory of the host, which all contexts can use (CU_MEMHOSTALLOC_PORTABLE). Move-only.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// @p bytes > 0. Throws Error.
  PinnedMemory(ContextPtr context, std::size_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(address_), bytes_}; }

 private:
  ContextPtr context_;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ddp::cuda
