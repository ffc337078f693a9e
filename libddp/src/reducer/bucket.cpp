#include "reducer/bucket.hpp"

#include <cstring>

#include "collectives/reduce_kernels.hpp"

namespace ddp::reducer {

Bucket::Bucket(const std::vector<Parameter>& parameters, std::vector<std::size_t> indices)
    : indices_(std::move(indices)), dtype_(parameters[indices_.front()].gradient.dtype()) {
  for (const std::size_t index : indices_) {
    offsets_.push_back(elements_);
    elements_ += parameters[index].gradient.numel();
  }
  memory_ = std::make_shared<std::vector<std::byte>>(elements_ * size_of(dtype_));
}

void Bucket::copy_in(std::size_t slot, const TensorView& gradient, int divisor) {
  std::byte* to = memory_->data() + offsets_[slot] * size_of(dtype_);
  if (gradient.numel() == 0) return;
  if (divisor == 1) {
    std::memcpy(to, gradient.data(), gradient.size_bytes());
  } else {
    collectives::divide_into(to, gradient.data(), dtype_, gradient.numel(), divisor);
  }
}

void Bucket::copy_out(std::size_t slot, const TensorView& gradient) const {
  if (gradient.numel() == 0) return;
  std::memcpy(gradient.data(), memory_->data() + offsets_[slot] * size_of(dtype_), gradient.size_bytes());
}

Work Bucket::launch(ProcessGroup& group) const {
  const TensorView flat{memory_->data(), dtype_, {static_cast<std::int64_t>(elements_)}};
  return group.all_reduce(flat, ReduceOp::sum, {{}, memory_});
}

}  // namespace ddp::reducer
