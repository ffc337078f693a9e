#include "cuda/memory.hpp"

#include <utility>

#include <fmt/format.h>

#include "cuda/driver.hpp"

namespace ddp::cuda {

DeviceMemory::DeviceMemory(ContextPtr context, std::size_t bytes) : context_(std::move(context)), bytes_(bytes) {
  const ContextScope scope(*context_);
  const CUresult code = driver().mem_alloc(&address_, bytes);
  if (code != CUDA_SUCCESS) {
    throw cuda_error(fmt::format("allocating {} bytes on CUDA device {}", bytes, context_->device()), code);
  }
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : context_(std::move(other.context_)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (address_ != 0)
    destroy_in(
        *context_, [this] { return driver().mem_free(address_); }, "freeing device memory");
}

PinnedMemory::PinnedMemory(ContextPtr context, std::size_t bytes) : context_(std::move(context)), bytes_(bytes) {
  const ContextScope scope(*context_);
  const CUresult code = driver().mem_host_alloc(&address_, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (code != CUDA_SUCCESS) {
    throw cuda_error(fmt::format("allocating {} bytes of page-locked host memory", bytes), code);
  }
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : context_(std::move(other.context_)),
      address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (address_ == nullptr) return;
  destroy_in(
      *context_, [this] { return driver().mem_free_host(address_); }, "freeing page-locked memory");
}

}  // namespace ddp::cuda
