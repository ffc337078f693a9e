#include <ddp/comm_hook.hpp>

#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/invalid_argument.hpp"
#include "collectives/reduce_kernels.hpp"
#include "kernels/copies.hpp"

namespace ddp {
namespace {

class AllReduceHook final : public CommHook {
 public:
  std::string name() const override { return "all_reduce"; }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    collectives::divide(bucket.buffer.data(), bucket.buffer.dtype(), bucket.buffer.numel(), group.size());
    return [work = group.all_reduce(bucket.buffer, ReduceOp::sum, {{}, bucket.memory})] { work.wait(); };
  }
};

class NoopHook final : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  BucketExchange start(const GradientBucket& /*stays*/, ProcessGroup& /*unused*/) override {
    return [] {};
  }
};

kernels::Format format_of(DType wire) {
  if (wire == DType::float16) return kernels::Format::float16;
  if (wire == DType::bfloat16) return kernels::Format::bfloat16;
  base::throw_invalid_argument("making a hook that compresses gradients",
                               fmt::format("{} is no type for the wire", to_string(wire)), "use float16 or bfloat16");
}

/// Memory for buckets in another type, kept from step to step: fresh pages would cost more than the cast.
class WireMemory {
 public:
  std::shared_ptr<void> take(std::size_t bucket, std::size_t bytes) {
    if (bucket >= kept_.size()) kept_.resize(bucket + 1);
    auto& [memory, size] = kept_[bucket];
    if (memory && size == bytes) return memory;
    constexpr std::align_val_t kAlignment{64};
    memory = {::operator new(bytes + 1, kAlignment), [](void* old) { ::operator delete(old, kAlignment); }};
    size = bytes;
    return memory;
  }

 private:
  std::vector<std::pair<std::shared_ptr<void>, std::size_t>> kept_;  ///< by bucket
};

void cast(const TensorView& from, kernels::Format of_from, const TensorView& to, kernels::Format of_to, double scale) {
  kernels::HostExecutor executor;
  const std::array pieces{kernels::Piece{.from = from.data(), .to = to.data(), .count = from.numel()}};
  kernels::copy(executor, pieces, of_from, of_to, scale);
}

/// A float32 bucket's copy in the type of the wire; the others' own memory.
GradientBucket shrink(const GradientBucket& bucket, WireMemory& memory, DType wire, double scale) {
  GradientBucket small{.index = bucket.index,
                       .is_last = bucket.is_last,
                       .buffer = {},
                       .parameters = bucket.parameters,
                       .gradients = {},
                       .memory = memory.take(bucket.index, bucket.buffer.numel() * size_of(wire))};
  small.buffer = {small.memory.get(), wire, bucket.buffer.shape()};
  cast(bucket.buffer, kernels::Format::float32, small.buffer, format_of(wire), scale);
  std::size_t offset = 0;
  for (const TensorView& gradient : bucket.gradients) {
    auto* const place = static_cast<std::byte*>(small.memory.get()) + offset * size_of(wire);
    small.gradients.emplace_back(place, wire, gradient.shape());
    offset += gradient.numel();
  }
  return small;
}

class CompressWrapper final : public CommHook {
 public:
  CompressWrapper(DType wire, std::shared_ptr<CommHook> inner) : wire_(wire), inner_(std::move(inner)) {
    static_cast<void>(format_of(wire));
    if (inner_->takes_leaves()) {
      base::throw_invalid_argument("making a hook that compresses gradients",
                                   fmt::format("'{}' adds gradients up without loss", inner_->name()),
                                   "use it alone: what is rounded before depends on the number of ranks");
    }
  }
  std::string name() const override { return fmt::format("{} of {}", inner_->name(), to_string(wire_)); }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (bucket.buffer.dtype() != DType::float32) return inner_->start(bucket, group);
    GradientBucket small = shrink(bucket, memory_, wire_, 1);
    BucketExchange exchange = inner_->start(small, group);
    return [wire = wire_, bucket, small = std::move(small), exchange = std::move(exchange)] {
      exchange();
      cast(small.buffer, format_of(wire), bucket.buffer, kernels::Format::float32, 1);
    };
  }

 private:
  DType wire_;
  std::shared_ptr<CommHook> inner_;
  WireMemory memory_;
};

class CompressHook final : public CommHook {
 public:
  explicit CompressHook(DType wire) : wire_(wire) { static_cast<void>(format_of(wire)); }
  std::string name() const override { return fmt::format("{} compression", to_string(wire_)); }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (bucket.buffer.dtype() != DType::float32) return plain_.start(bucket, group);
    // divided before it is rounded: gradients up to 65504 times the number of ranks fit into float16
    const GradientBucket small = shrink(bucket, memory_, wire_, 1.0 / group.size());
    const Work work = group.all_reduce(small.buffer, ReduceOp::sum, {{}, small.memory});
    return [wire = wire_, bucket, small, work] {
      work.wait();
      cast(small.buffer, format_of(wire), bucket.buffer, kernels::Format::float32, 1);
    };
  }

 private:
  DType wire_;
  AllReduceHook plain_;
  WireMemory memory_;
};

}  // namespace

void CommHook::add_leaf(const GradientBucket& /*unused*/) {}

std::shared_ptr<CommHook> all_reduce_hook() { return std::make_shared<AllReduceHook>(); }
std::shared_ptr<CommHook> compress_hook(DType wire) { return std::make_shared<CompressHook>(wire); }
std::shared_ptr<CommHook> compress_wrapper(DType wire, std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>(wire, std::move(inner));
}
std::shared_ptr<CommHook> noop_hook() { return std::make_shared<NoopHook>(); }

}  // namespace ddp
