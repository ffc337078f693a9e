#include "reducer/bucket_memory.hpp"

#include <cstdint>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/group_engine.hpp"
#include "reducer/options_check.hpp"

namespace ddp::reducer {
namespace {

constexpr std::align_val_t kBucketAlignment{64};  // a cache line, and the widest vector

std::shared_ptr<void> allocate(std::size_t bytes, Device device, const BucketAllocator& allocator,
                               ProcessGroup& group) {
  if (!allocator) {
    if (device.type == DeviceType::cuda) return group.allocate(bytes);
    return host_memory(bytes);
  }
  std::shared_ptr<void> memory = allocator(bytes, device);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory.get()) % static_cast<std::size_t>(kBucketAlignment) == 0;
  if (memory && aligned) return memory;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("allocating {} bytes for a bucket of gradients", bytes),
               .cause = memory ? "the allocator's memory is not aligned to 64 bytes" : "the allocator returned null"}};
}

}  // namespace

std::shared_ptr<void> host_memory(std::size_t bytes) {
  return {::operator new(bytes, kBucketAlignment), [](void* memory) { ::operator delete(memory, kBucketAlignment); }};
}

Stream home_stream(Device device, const ReducerOptions& options) {
  return options.stream.value_or(Stream{.device = device, .handle = nullptr});
}

std::shared_ptr<void> bucket_memory(std::size_t bytes, Device device, const ReducerOptions& options,
                                    ProcessGroup& group, const std::shared_ptr<TensorExecutor>& executor) {
  std::shared_ptr<void> memory = allocate(bytes, device, options.allocator, group);
  if (device.type == DeviceType::cpu || !executor) return memory;
  void* const address = memory.get();
  return {address, [memory = std::move(memory), executor](void* /*the same*/) mutable {
            executor->keep(std::exchange(memory, nullptr));
          }};
}

std::shared_ptr<TensorExecutor> device_executor(const std::vector<Parameter>& parameters, const ReducerOptions& options,
                                                ProcessGroup& group) {
  bool on_device = false;
  bool sparse = false;
  bool converts = options.comm_hook != nullptr;
  for (const Parameter& parameter : parameters) {
    if (!parameter.requires_gradient || parameter.value.device().type == DeviceType::cpu) continue;
    on_device = true;
    sparse = sparse || parameter.sparse_gradient;
    if (parameter.sparse_gradient) continue;
    const DType type = parameter.value.dtype();
    converts = converts || type != exchanged_as(type, options) ||
               (!options.gradient_as_bucket_view && divides_on_device(type));
  }
  collectives::GroupEngine& engine = collectives::GroupEngine::of(group);
  const bool exchanges = group.size() > 1 || options.comm_hook;
  // one rank alone needs it for these, else to move gradients to other buckets only, and may have no backend for its
  // device
  const bool useful = options.gradient_as_bucket_view && engine.lane_of(DeviceType::cuda) != nullptr;
  if (!on_device || (!exchanges && !useful && !sparse)) return nullptr;
  return engine.make_executor(exchanges && converts, Deadline::after(group.timeout()));
}

}  // namespace ddp::reducer
