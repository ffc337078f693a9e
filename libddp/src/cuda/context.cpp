#include "cuda/context.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace ddp::cuda {
namespace {

/// False if it failed, or if there was nothing to do.
bool push(const PrimaryContext& context, CUresult& code) noexcept {
  CUcontext current = nullptr;
  code = driver().ctx_get_current(&current);
  if (code != CUDA_SUCCESS || current == context.get()) return false;
  code = driver().ctx_push_current(context.get());
  return code == CUDA_SUCCESS;
}

}  // namespace

ContextPtr PrimaryContext::retain(int device) {
  CUdevice handle{};
  check(driver().device_get(&handle, device), fmt::format("using CUDA device {}", device));
  CUcontext context = nullptr;
  check(driver().device_primary_ctx_retain(&context, handle),
        fmt::format("retaining the primary context of CUDA device {}", device));
  return ContextPtr(new PrimaryContext(device, handle, context));
}

PrimaryContext::~PrimaryContext() {
  log_failure(driver().device_primary_ctx_release(handle_), "releasing a primary context");
}

ContextScope::ContextScope(const PrimaryContext& context) {
  CUresult code = CUDA_SUCCESS;
  pushed_ = push(context, code);
  check(code, "making a CUDA context current");
}

ContextScope::ContextScope(const PrimaryContext& context, CUresult& code) noexcept : pushed_(push(context, code)) {}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) log_failure(driver().ctx_pop_current(&popped), "restoring the current CUDA context");
}

namespace {

std::string uuid_text(const CUuuid& uuid, bool is_part) {
  std::string text = is_part ? "MIG-" : "GPU-";
  int position = 0;
  for (const char byte : uuid.bytes) {
    if (position == 4 || position == 6 || position == 8 || position == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    ++position;
  }
  return text;
}

}  // namespace

int device_count() {
  int count = 0;
  check(driver().device_get_count(&count), "counting CUDA devices");
  return count;
}

DeviceFacts device_facts(int device) {
  constexpr int kTextBytes = 256;
  const std::string attempted = fmt::format("describing CUDA device {}", device);
  CUdevice handle{};
  check(driver().device_get(&handle, device), attempted);
  std::array<char, kTextBytes> text{};
  DeviceFacts facts;
  check(driver().device_get_name(text.data(), kTextBytes, handle), attempted);
  facts.name = text.data();
  check(driver().device_get_pci_bus_id(text.data(), kTextBytes, handle), attempted);
  facts.pci_bus_id = text.data();
  CUuuid uuid{};
  check(driver().device_get_uuid(&uuid, handle), attempted);
  // A part of a GPU has "MIG" in its name, as nvidia-smi -L shows it; the driver API has no other sign of it.
  facts.uuid = uuid_text(uuid, facts.name.find(" MIG ") != std::string::npos);
  check(driver().device_get_attribute(&facts.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle),
        attempted);
  check(driver().device_get_attribute(&facts.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle),
        attempted);
  return facts;
}

Module::Module(ContextPtr context, const void* image) : context_(std::move(context)) {
  const ContextScope scope(*context_);
  check(driver().module_load_data(&module_, image),
        fmt::format("loading device code onto CUDA device {}", context_->device()));
}

Module::Module(Module&& other) noexcept
    : context_(std::move(other.context_)), module_(std::exchange(other.module_, nullptr)) {}

Module& Module::operator=(Module&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(module_, other.module_);
  return *this;
}

Module::~Module() {
  if (module_ != nullptr)
    destroy_in(
        *context_, [this] { return driver().module_unload(module_); }, "unloading device code");
}

CUfunction Module::function(const char* name) const {
  const ContextScope scope(*context_);
  CUfunction function = nullptr;
  check(driver().module_get_function(&function, module_, name), fmt::format("looking up the kernel {}", name));
  return function;
}

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
