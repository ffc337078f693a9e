// Floats in a device's memory that a test fills and reads through a stream of its own.
#pragma once

#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace ddp::test {

/// Floats on this rank's device, with a stream of the program's that fills them.
class DeviceFloats {
 public:
  DeviceFloats(int device, std::size_t count)
      : context_(cuda::PrimaryContext::retain(device)),
        stream_(context_, cuda::StreamPriority::normal),
        memory_(context_, count * sizeof(float)),
        host_(count) {}

  ddp::TensorView view() const {
    return {memory_.pointer(), ddp::DType::float32, {static_cast<std::int64_t>(host_.size())}, device()};
  }
  ddp::CallOptions options() const {
    ddp::CallOptions options;
    options.stream = stream();
    return options;
  }
  ddp::Stream stream() const { return {.device = device(), .handle = stream_.get()}; }
  void fill(float value) {
    std::fill(host_.begin(), host_.end(), value);
    copy(memory_.get(), reinterpret_cast<CUdeviceptr>(host_.data()), host_.size() * sizeof(float));
  }
  CUstream stream_handle() const { return stream_.get(); }
  /// Memory of at most the same size.
  void fill_at(const ddp::TensorView& there, float value) {
    sources_.emplace_back(there.numel(), value);  // read when the stream comes to it
    copy(reinterpret_cast<CUdeviceptr>(there.data()), reinterpret_cast<CUdeviceptr>(sources_.back().data()),
         there.size_bytes());
  }
  bool equal_at(const ddp::TensorView& there, float value) {
    copy(reinterpret_cast<CUdeviceptr>(host_.data()), reinterpret_cast<CUdeviceptr>(there.data()), there.size_bytes());
    return host_equals(value, there.numel());
  }
  /// Waits for the program's stream alone.
  bool all_equal(float value) {
    copy(reinterpret_cast<CUdeviceptr>(host_.data()), memory_.get(), host_.size() * sizeof(float));
    return host_equals(value, host_.size());
  }

 private:
  bool host_equals(float value, std::size_t count) {
    const cuda::ContextScope scope(*context_);
    cuda::check(cuda::driver().stream_synchronize(stream_.get()), "waiting for the program's stream");
    return std::all_of(host_.begin(), host_.begin() + static_cast<std::ptrdiff_t>(count),
                       [&](float each) { return each == value; });
  }

  ddp::Device device() const { return {.type = ddp::DeviceType::cuda, .index = context_->device()}; }
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    const cuda::ContextScope scope(*context_);
    cuda::check(cuda::driver().memcpy_async(to, from, bytes, stream_.get()), "copying");
  }

  cuda::ContextPtr context_;
  cuda::Stream stream_;
  cuda::DeviceMemory memory_;
  std::vector<float> host_;
  std::deque<std::vector<float>> sources_;
};

}  // namespace ddp::test
