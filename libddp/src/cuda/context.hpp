// A device's primary context, which CUDA's runtime (PyTorch) uses, too, and making it current for a scope. Other owners
// of this folder hold theirs, so that a context lives as long as what was made in it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "cuda/driver.hpp"

namespace ddp::cuda {

/// Retains a device's primary context while it lives. Shared by what is made in it. Any thread.
class PrimaryContext {
 public:
  /// @p device: its number among those that the process sees. The first owner of a process pays for the context: some
  /// 100 ms and some 100 MiB of device memory. Throws Error.
  static std::shared_ptr<const PrimaryContext> retain(int device);
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext();

  CUcontext get() const noexcept { return context_; }
  int device() const noexcept { return device_; }

 private:
  PrimaryContext(int device, CUdevice handle, CUcontext context) noexcept
      : device_(device), handle_(handle), context_(context) {}

  int device_;
  CUdevice handle_;
  CUcontext context_;
};

using ContextPtr = std::shared_ptr<const PrimaryContext>;

/// Makes a context current in this thread, and restores what was. On one thread's stack only. A context that is current
/// already costs one call.
class ContextScope {
 public:
  /// Throws Error.
  explicit ContextScope(const PrimaryContext& context);
  /// Tells instead of throwing.
  ContextScope(const PrimaryContext& context, CUresult& code) noexcept;
  ContextScope& operator=(ContextScope&&) = delete;
  ~ContextScope();

 private:
  bool pushed_ = false;
};

/// For destructors: calls @p destroy while the context is current, and logs what fails.
template <class Destroy>
void destroy_in(const PrimaryContext& context, Destroy destroy, const char* attempted) noexcept {
  CUresult code = CUDA_SUCCESS;
  const ContextScope scope(context, code);
  log_failure(code == CUDA_SUCCESS ? destroy() : code, attempted);
}

// ---- The CUDA devices that the process sees, and how to tell them apart across processes.

/// Devices that the process sees (CUDA_VISIBLE_DEVICES); 0 is no error. Throws Error.
int device_count();

struct DeviceFacts {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::string uuid;  ///< "GPU-8f6c...", "MIG-..." for a part of one: as nvidia-smi writes it. Unique in the world.
  std::string pci_bus_id;  ///< "0000:1b:00.0"
  int compute_major = 0;   ///< 9.0 is sm_90
  int compute_minor = 0;
};

/// Facts of a device by its number. Needs no context. Throws Error.
DeviceFacts device_facts(int device);

// ---- A module: device code that was loaded into a context.

/// Owns a module. Move-only.
class Module {
 public:
  /// @p image: a fat binary, which the driver takes the code for its device from. Throws Error.
  Module(ContextPtr context, const void* image);
  Module(Module&& other) noexcept;
  Module& operator=(Module&& other) noexcept;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  /// The kernel of this name; valid as long as the module. Throws Error.
  CUfunction function(const char* name) const;

 private:
  ContextPtr context_;
  CUmodule module_ = nullptr;
};

// Owners of memory: on a device, and of the host's that devices reach fast (page-locked).

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
