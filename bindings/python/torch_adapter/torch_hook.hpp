// torch.distributed's communication hooks, in Python or built in, as libddp's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <ddp/comm_hook.hpp>

#include <ddp/torch/module_tensors.hpp>

namespace ddp_adapter {

class TorchHook final : public ddp::CommHook {
 public:
  /// @param name compared among ranks; @param tensors of the Reducer, in its order
  TorchHook(std::string name, std::unique_ptr<c10d::CommHookInterface> hook, std::vector<at::Tensor> tensors)
      : name_(std::move(name)), hook_(std::move(hook)), tensors_(std::move(tensors)) {}

  std::string name() const override { return name_; }

  ddp::BucketExchange start(const ddp::GradientBucket& bucket, ddp::ProcessGroup& /*group*/) override {
    const at::AutoGradMode no_grad(false);
    at::Tensor buffer = memory_of(bucket);
    std::vector<std::size_t> offsets, lengths;
    std::vector<c10::IntArrayRef> sizes;
    std::vector<at::Tensor> parameters;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto* const begin = static_cast<const std::byte*>(bucket.buffer.data());
      const auto* const place = static_cast<const std::byte*>(bucket.gradients[i].data());
      offsets.push_back(static_cast<std::size_t>(place - begin) / buffer.element_size());
      lengths.push_back(bucket.gradients[i].numel());
      parameters.push_back(tensors_[bucket.parameters[i]]);
      sizes.push_back(parameters.back().sizes());
    }
    const std::size_t count = bucket.index + (bucket.is_last ? 1 : 2);
    c10d::GradBucket theirs(bucket.index, count, buffer, std::move(offsets), std::move(lengths), std::move(sizes),
                            std::move(parameters), std::nullopt);
    auto future = hook_->runHook(theirs);
    return [this, future = std::move(future), buffer]() mutable {
      const at::AutoGradMode no_grad_either(false);
      future->waitAndThrow();
      const at::Tensor result = hook_->parseHookResult(future->value());
      if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result.view(buffer.sizes()));
    };
  }

 private:
  static at::Tensor memory_of(const ddp::GradientBucket& bucket) {
    return at::from_blob(
        bucket.buffer.data(), {static_cast<std::int64_t>(bucket.buffer.numel())}, [memory = bucket.memory](void*) {},
        at::TensorOptions().dtype(type_of(bucket.buffer.dtype())));
  }
  static at::ScalarType type_of(ddp::DType type) {
    switch (type) {
      case ddp::DType::float64: return at::kDouble;
      case ddp::DType::float16: return at::kHalf;
      case ddp::DType::bfloat16: return at::kBFloat16;
      default: return at::kFloat;  // gradients are of these types
    }
  }

  const std::string name_;
  const std::unique_ptr<c10d::CommHookInterface> hook_;
  const std::vector<at::Tensor> tensors_;
};

}  // namespace ddp_adapter
