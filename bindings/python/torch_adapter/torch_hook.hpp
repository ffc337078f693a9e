// torch.distributed's communication hooks, in Python or built in, as libddp's. A hook may start operations when others
// end (PowerSGD does), so it gets a bucket when that of the one before has ended: all ranks start all operations in one
// order.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <ddp/comm_hook.hpp>

#include <ddp/torch/device_streams.hpp>
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
  bool serves_cuda() const override { return true; }

  ddp::BucketExchange start(const ddp::GradientBucket& bucket, ddp::ProcessGroup& /*group*/) override {
    const at::AutoGradMode no_grad(false);
    at::Tensor buffer = memory_of(bucket);
    follow(bucket, buffer);
    const auto exchange = std::make_shared<Exchange>(bucket_for_hook(bucket, buffer));
    const FuturePointer before = std::exchange(last_, bucket.is_last ? nullptr : exchange->ended);
    if (bucket.index == 0 || !before) {
      run(*exchange);
    } else {
      before->addCallback([self = shared_from_this(), exchange](Future& previous) {
        if (previous.hasError()) return exchange->ended->setError(previous.exception_ptr());
        try {
          self->run(*exchange);
        } catch (...) {
          exchange->ended->setError(std::current_exception());
        }
      });
    }
    return [this, exchange, buffer, executor = bucket.executor]() mutable {
      const at::AutoGradMode no_grad_either(false);
      wait_for(exchange->ended);
      const c10::OptionalStreamGuard in_stream(stream_);
      exchange->result->waitAndThrow();  // on a device, the stream does
      const at::Tensor result = hook_->parseHookResult(exchange->result->value());
      if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result.view(buffer.sizes()));
      if (!stream_) return;
      ddp::torch::keep_for(*stream_, result);
      executor->wait_for(executor->now_in(ddp::torch::stream_of(*stream_)));
    };
  }

 private:
  using Future = c10::ivalue::Future;
  using FuturePointer = c10::intrusive_ptr<Future>;

  struct Exchange {
    explicit Exchange(c10d::GradBucket lent) : bucket(std::move(lent)) {}

    c10d::GradBucket bucket;
    FuturePointer ended = c10::make_intrusive<Future>(c10::NoneType::get());
    FuturePointer result;  ///< the hook's own, which knows its streams; set before `ended` is completed
  };

  /// On a device, hooks run in a stream of their own: they hold back neither the backward pass nor other buckets'
  /// copies. In one for all, so that what they keep from step to step is in order.
  void follow(const ddp::GradientBucket& bucket, const at::Tensor& buffer) {
    const auto device = ddp::torch::cuda_device_of(buffer);
    if (!device) return;
    if (!stream_) stream_ = ddp::torch::side_stream(*device);
    bucket.executor->hold_back(ddp::torch::stream_of(*stream_));
  }

  c10d::GradBucket bucket_for_hook(const ddp::GradientBucket& bucket, const at::Tensor& buffer) const {
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
    return c10d::GradBucket(bucket.index, count, buffer, std::move(offsets), std::move(lengths), std::move(sizes),
                            std::move(parameters), std::nullopt);
  }

  void run(Exchange& exchange) {
    const at::AutoGradMode no_grad(false);
    const c10::OptionalStreamGuard in_stream(stream_);
    exchange.result = hook_->runHook(exchange.bucket);
    constexpr bool kUsesValue = false;  // nor its streams
    exchange.result->addCallback(
        [ended = exchange.ended](Future& future) {
          if (future.hasError()) return ended->setError(future.exception_ptr());
          ended->markCompleted();
        },
        kUsesValue);
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
    const ddp::Device place = bucket.buffer.device();
    const at::Device device = place.type == ddp::DeviceType::cuda
                                  ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.index))
                                  : at::Device(at::kCPU);
    return at::from_blob(
        bucket.buffer.data(), {static_cast<std::int64_t>(bucket.buffer.numel())}, [memory = bucket.memory](void*) {},
        at::TensorOptions(device).dtype(type_of(bucket.buffer.dtype())), device);
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
  FuturePointer last_;                 ///< of the bucket before, in this step
  std::optional<c10::Stream> stream_;  ///< of hooks on a device
};

}  // namespace ddp_adapter
