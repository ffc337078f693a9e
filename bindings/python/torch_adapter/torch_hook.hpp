// torch.distributed's communication hooks, in Python or built in, as libddp's. A hook may start operations when others
// end (PowerSGD does), so it gets a bucket when that of the one before has ended: all ranks start all operations in one
// order.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <ddp/comm_hook.hpp>

#include <ddp/torch/hand_over.hpp>
#include <ddp/torch/interruptible.hpp>
#include <ddp/torch/module_tensors.hpp>

namespace ddp_adapter {

class TorchHook final : public ddp::CommHook, public std::enable_shared_from_this<TorchHook> {
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
    const auto theirs =
        std::make_shared<c10d::GradBucket>(bucket.index, count, buffer, std::move(offsets), std::move(lengths),
                                           std::move(sizes), std::move(parameters), std::nullopt);
    auto ended = c10::make_intrusive<Future>(c10::AnyType::get());
    const FuturePointer before = std::exchange(last_, bucket.is_last ? nullptr : ended);
    if (bucket.index == 0 || !before) {
      run(*theirs, ended);
    } else {
      before->addCallback([self = shared_from_this(), theirs, ended](Future& previous) {
        if (previous.hasError()) return ended->setError(previous.exception_ptr());
        try {
          self->run(*theirs, ended);
        } catch (...) {
          ended->setError(std::current_exception());
        }
      });
    }
    return [this, ended = std::move(ended), buffer]() mutable {
      const at::AutoGradMode no_grad_either(false);
      wait_for(ended);
      const at::Tensor result = hook_->parseHookResult(ended->value());
      if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result.view(buffer.sizes()));
    };
  }

 private:
  using Future = c10::ivalue::Future;
  using FuturePointer = c10::intrusive_ptr<Future>;

  void run(c10d::GradBucket& bucket, const FuturePointer& ended) {
    const at::AutoGradMode no_grad(false);
    hook_->runHook(bucket)->addCallback([ended](Future& future) {
      if (future.hasError()) return ended->setError(future.exception_ptr());
      ended->markCompleted(future.value());
    });
  }

  /// Ctrl-C ends it, while the hook goes on.
  static void wait_for(const FuturePointer& ended) {
    if (ended->completed()) return ended->waitAndThrow();
    // what it holds may be Python's
    const std::shared_ptr<Future> kept(ended.get(), [owner = ended](Future*) mutable {
      ddp::torch::hand_over([last = std::move(owner)]() mutable { last.reset(); });
    });
    ddp::torch::interruptible([kept] { kept->waitAndThrow(); });
  }

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
  FuturePointer last_;  ///< of the bucket before, in this step
};

}  // namespace ddp_adapter
