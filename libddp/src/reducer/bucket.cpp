#include "reducer/bucket.hpp"

#include <algorithm>
#include <cstring>

#include <ddp/error.hpp>

#include "reducer/bucket_memory.hpp"
#include "reducer/options_check.hpp"

namespace ddp::reducer {

Bucket::Bucket(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& indices,
               const ReducerOptions& options, ProcessGroup& group, std::shared_ptr<TensorExecutor> executor)
    : parameters_(&parameters),
      options_(&options),
      indices_(indices),
      gradient_dtype_(parameters[indices.front()].value.dtype()),
      dtype_(exchanged_as(gradient_dtype_, options)),
      executor_(std::move(executor)),
      sources_(on_cpu() ? 0 : indices.size()) {
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    offsets_.push_back(elements_);
    elements_ += value(slot).numel();
  }
  const auto zeros = [&](DType dtype) {
    const std::size_t bytes = std::max<std::size_t>(elements_ * size_of(dtype), 1);
    std::shared_ptr<void> memory = bucket_memory(bytes, device(), options, group, executor_);
    if (on_cpu()) std::memset(memory.get(), 0, bytes);
    return memory;
  };
  memory_ = zeros(dtype_);
  if (casts() && options.gradient_as_bucket_view) home_ = zeros(gradient_dtype_);
}

bool Bucket::divides() const noexcept {
  if (on_cpu()) return true;
  // what lies in the bucket already would only be read and written for it
  return divides_on_device(dtype_) && (casts() || !options_->gradient_as_bucket_view);
}

void Bucket::copy_in(std::size_t slot, const void* gradient, int divisor) {
  if (!on_cpu()) {
    sources_[slot] = gradient;
    return;
  }
  const TensorCopy copy{.from = gradient, .to = place(slot), .count = value(slot).numel()};
  executor_->copy({&copy, 1}, gradient_dtype_, dtype_, divisor);
}

void Bucket::fill(int divisor) {
  if (on_cpu()) return;
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    copies.push_back({.from = sources_[slot], .to = place(slot), .count = value(slot).numel()});
  }
  executor_->copy(copies, gradient_dtype_, dtype_, divides() ? divisor : 1);
}

void Bucket::copy_out(const std::vector<void*>& targets, const std::vector<std::uint8_t>& used) const {
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    void* const target = targets[indices_[slot]];
    if (target == nullptr || used[indices_[slot]] == 0) continue;
    copies.push_back({.from = place(slot), .to = target, .count = value(slot).numel()});
  }
  executor_->copy(copies, dtype_, gradient_dtype_);
}

TensorView Bucket::view(std::size_t slot) const {
  if (!home_) return exchanged(slot);
  return {static_cast<std::byte*>(home_.get()) + offsets_[slot] * size_of(gradient_dtype_), gradient_dtype_,
          value(slot).shape(), device()};
}

TensorView Bucket::exchanged(std::size_t slot) const { return {place(slot), dtype_, value(slot).shape(), device()}; }

void Bucket::copy_home(const std::vector<std::uint8_t>& used) const {
  if (!home_) return;
  std::vector<void*> targets(used.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) targets[indices_[slot]] = view(slot).data();
  copy_out(targets, used);
}

void Bucket::move_in(const std::vector<const void*>& gradients) {
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    copies.push_back({.from = gradients[slot], .to = view(slot).data(), .count = value(slot).numel()});
  }
  executor_->copy(copies, gradient_dtype_, gradient_dtype_);
}

Work Bucket::launch(ProcessGroup& group, int divisor) const {
  CallOptions options{std::optional<Deadline>{}, memory_};
  options.stream = executor_->stream();
  if (divides()) return group.all_reduce(flat(), ReduceOp::sum, std::move(options));
  // by the backend, before it adds
  if (divisor == group.size()) return group.all_reduce(flat(), ReduceOp::avg, std::move(options));
  options.prescale = 1.0 / divisor;
  return group.all_reduce(flat(), ReduceOp::sum, std::move(options));
}

GradientBucket Bucket::lend(std::size_t index, bool is_last, const ProcessGroup& group) const {
  GradientBucket bucket{.index = index,
                        .is_last = is_last,
                        .buffer = flat(),
                        .parameters = indices_,
                        .memory = memory_,
                        .executor = executor_};
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) bucket.gradients.push_back(exchanged(slot));
  if (on_cpu()) {
    bucket.allocate = host_memory;  // the program's allocator need not serve several threads
    return bucket;
  }
  bucket.program = home_stream(device(), *options_);
  bucket.allocate = [device = device(), options = options_, group = ProcessGroup(group),
                     executor = executor_](std::size_t bytes) mutable {
    std::shared_ptr<void> memory = bucket_memory(bytes, device, *options, group, executor);
    executor->wait_for(executor->now_in(home_stream(device, *options)));  // it is zeroed there
    return memory;
  };
  return bucket;
}

}  // namespace ddp::reducer
