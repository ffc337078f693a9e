#include "reducer/bucket.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/reduce_kernels.hpp"

namespace ddp::reducer {
namespace {

constexpr std::align_val_t kBucketAlignment{64};  // a cache line, and the widest vector

std::shared_ptr<void> allocate(std::size_t bytes, Device device, const BucketAllocator& allocator) {
  if (!allocator) {
    return {::operator new(bytes, kBucketAlignment), [](void* memory) { ::operator delete(memory, kBucketAlignment); }};
  }
  std::shared_ptr<void> memory = allocator(bytes, device);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory.get()) % static_cast<std::size_t>(kBucketAlignment) == 0;
  if (memory && aligned) return memory;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("allocating {} bytes for a bucket of gradients", bytes),
               .cause = memory ? "the allocator's memory is not aligned to 64 bytes" : "the allocator returned null",
               .native = {},
               .ranks = {},
               .hint = {}}};
}

}  // namespace

Bucket::Bucket(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& indices,
               const BucketAllocator& allocator)
    : parameters_(&parameters), indices_(indices), dtype_(parameters[indices.front()].value.dtype()) {
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    offsets_.push_back(elements_);
    elements_ += value(slot).numel();
  }
  const std::size_t bytes = std::max<std::size_t>(elements_ * size_of(dtype_), 1);
  memory_ = allocate(bytes, value(0).device(), allocator);
  if (on_cpu()) std::memset(memory_.get(), 0, bytes);
}

void Bucket::copy_in(std::size_t slot, const void* gradient, int divisor) {
  const std::size_t count = value(slot).numel();
  if (count == 0 || !on_cpu()) return;
  if (gradient == nullptr) {
    std::memset(place(slot), 0, count * size_of(dtype_));
  } else if (divisor > 1) {
    collectives::divide_into(place(slot), gradient, dtype_, count, divisor);
  } else if (gradient != place(slot)) {
    std::memcpy(place(slot), gradient, count * size_of(dtype_));
  }
}

void Bucket::copy_out(std::size_t slot, void* gradient) const {
  const std::size_t bytes = value(slot).size_bytes();
  if (bytes > 0 && gradient != nullptr && gradient != place(slot)) std::memcpy(gradient, place(slot), bytes);
}

TensorView Bucket::view(std::size_t slot) const {
  return {place(slot), dtype_, value(slot).shape(), value(slot).device()};
}

Work Bucket::launch(ProcessGroup& group, const std::optional<Stream>& stream) const {
  const TensorView flat{memory_.get(), dtype_, {static_cast<std::int64_t>(elements_)}, value(0).device()};
  CallOptions options{std::optional<Deadline>{}, memory_};
  if (on_cpu()) return group.all_reduce(flat, ReduceOp::sum, std::move(options));
  options.stream = stream;
  return group.all_reduce(flat, ReduceOp::avg, std::move(options));  // it divides on the device, before the sum
}

GradientBucket Bucket::lend(std::size_t index, bool is_last) const {
  GradientBucket bucket{.index = index,
                        .is_last = is_last,
                        .buffer = {memory_.get(), dtype_, {static_cast<std::int64_t>(elements_)}, value(0).device()},
                        .parameters = indices_,
                        .gradients = {},
                        .memory = memory_};
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) bucket.gradients.push_back(view(slot));
  return bucket;
}

}  // namespace ddp::reducer
