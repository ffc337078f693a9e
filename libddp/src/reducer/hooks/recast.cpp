#include "reducer/hooks/recast.hpp"

#include <array>
#include <new>

#include "kernels/copies.hpp"

namespace ddp::hooks {
namespace {

kernels::Format format_of(DType type) {
  if (type == DType::float16) return kernels::Format::float16;
  if (type == DType::bfloat16) return kernels::Format::bfloat16;
  return kernels::Format::float32;
}

}  // namespace

std::shared_ptr<void> BucketCopies::take(std::size_t bucket, std::size_t bytes) {
  if (bucket >= kept_.size()) kept_.resize(bucket + 1);
  auto& [memory, size] = kept_[bucket];
  if (memory && size == bytes) return memory;
  constexpr std::align_val_t kAlignment{64};
  memory = {::operator new(bytes + 1, kAlignment), [](void* old) { ::operator delete(old, kAlignment); }};
  size = bytes;
  return memory;
}

void cast(const TensorView& from, const TensorView& to, double scale) {
  kernels::HostExecutor executor;
  const std::array pieces{kernels::Piece{.from = from.data(), .to = to.data(), .count = from.numel()}};
  kernels::copy(executor, pieces, format_of(from.dtype()), format_of(to.dtype()), scale);
}

GradientBucket recast(const GradientBucket& bucket, BucketCopies& copies, DType type, double scale) {
  GradientBucket copy{.index = bucket.index,
                      .is_last = bucket.is_last,
                      .buffer = {},
                      .parameters = bucket.parameters,
                      .gradients = {},
                      .memory = copies.take(bucket.index, bucket.buffer.numel() * size_of(type))};
  copy.buffer = {copy.memory.get(), type, bucket.buffer.shape()};
  cast(bucket.buffer, copy.buffer, scale);
  std::size_t offset = 0;
  for (const TensorView& gradient : bucket.gradients) {
    auto* const place = static_cast<std::byte*>(copy.memory.get()) + offset * size_of(type);
    copy.gradients.emplace_back(place, type, gradient.shape());
    offset += gradient.numel();
  }
  return copy;
}

}  // namespace ddp::hooks
