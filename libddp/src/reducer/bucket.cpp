#include "reducer/bucket.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/reduce_kernels.hpp"
#include "reducer/hooks/recast.hpp"
#include "reducer/options_check.hpp"

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
               const ReducerOptions& options)
    : parameters_(&parameters),
      indices_(indices),
      gradient_dtype_(parameters[indices.front()].value.dtype()),
      dtype_(exchanged_as(gradient_dtype_, options)) {
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    offsets_.push_back(elements_);
    elements_ += value(slot).numel();
  }
  const auto zeros = [&](DType dtype) {
    const std::size_t bytes = std::max<std::size_t>(elements_ * size_of(dtype), 1);
    std::shared_ptr<void> memory = allocate(bytes, value(0).device(), options.allocator);
    if (on_cpu()) std::memset(memory.get(), 0, bytes);
    return memory;
  };
  memory_ = zeros(dtype_);
  if (casts() && options.gradient_as_bucket_view) home_ = zeros(gradient_dtype_);
}

void Bucket::copy_in(std::size_t slot, const void* gradient, int divisor) {
  const std::size_t count = value(slot).numel();
  if (count == 0 || !on_cpu()) return;
  if (gradient == nullptr) {
    std::memset(place(slot), 0, count * size_of(dtype_));
  } else if (casts()) {
    hooks::cast({const_cast<void*>(gradient), gradient_dtype_, value(slot).shape()},
                {place(slot), dtype_, value(slot).shape()}, 1.0 / divisor);
  } else if (divisor > 1) {
    collectives::divide_into(place(slot), gradient, dtype_, count, divisor);
  } else if (gradient != place(slot)) {
    std::memcpy(place(slot), gradient, count * size_of(dtype_));
  }
}

void Bucket::copy_out(std::size_t slot, void* gradient) const {
  const std::size_t bytes = value(slot).size_bytes();
  if (casts() && bytes > 0 && gradient != nullptr) {
    return hooks::cast({place(slot), dtype_, value(slot).shape()}, {gradient, gradient_dtype_, value(slot).shape()}, 1);
  }
  if (bytes > 0 && gradient != nullptr && gradient != place(slot)) std::memcpy(gradient, place(slot), bytes);
}

TensorView Bucket::view(std::size_t slot) const {
  if (!home_) return exchanged(slot);
  return {static_cast<std::byte*>(home_.get()) + offsets_[slot] * size_of(gradient_dtype_), gradient_dtype_,
          value(slot).shape()};
}

TensorView Bucket::exchanged(std::size_t slot) const {
  return {place(slot), dtype_, value(slot).shape(), value(slot).device()};
}

void Bucket::move_in(std::size_t slot, const void* gradient) {
  if (value(slot).numel() > 0 && on_cpu()) std::memcpy(view(slot).data(), gradient, value(slot).size_bytes());
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
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) bucket.gradients.push_back(exchanged(slot));
  return bucket;
}

}  // namespace ddp::reducer
