// Streams of tensors' devices, by libtorch's own interface for every kind of device, without CUDA headers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <ddp/error.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp::torch {

inline Device device_of(const at::Device& device) noexcept {
  if (!device.is_cuda()) return {};
  return {.type = DeviceType::cuda, .index = device.index()};
}

/// The stream with its cudaStream_t, as libddp uses it. Throws Error(unavailable) if libtorch does not expose it, as
/// before PyTorch 2.11. @tparam TorchStream c10::Stream, whose members depend on the version
template <class TorchStream>
Stream stream_of(const TorchStream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return {.device = device_of(stream.device()), .handle = stream.native_handle()};
  } else {
    throw Error{
        {.code = ErrorCode::unavailable,
         .attempted = "using a tensor on a CUDA device",
         .cause = "this PyTorch does not expose its CUDA streams",
         .hint = "take PyTorch 2.11 or newer, or a backend of its own for CUDA tensors: \"cpu:ddp,cuda:nccl\""}};
  }
}

/// The calling thread's current stream on @p device.
inline c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Whether work enqueued in @p stream becomes part of a graph. @tparam Guard VirtualGuardImpl, likewise
template <class Guard>
bool is_captured(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) return guard.isStreamCapturing(stream);
  return false;
}

/// A stream for work that follows an operation and must not hold back the calling thread's own. While the current
/// stream is captured: that stream, since the operation is in it, too.
inline c10::Stream side_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream current = guard.getStream(device);
  return is_captured(guard, current) ? current : guard.getStreamFromGlobalPool(device);
}

/// The device of @p tensor, if it has streams.
inline std::optional<at::Device> cuda_device_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? std::optional(tensor.device()) : std::nullopt;
}

/// Later work in one stream waits for the work now in another.
inline void hold_back(const c10::Stream& later, const c10::Stream& earlier) {
  if (later == earlier) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// Keeps the tensor's memory from being reused before the work now in @p stream is done, even if the tensor is gone.
inline void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

/// The stream that was current on a tensor's device when this was made. On the host there is no stream, and nothing to
/// order.
class HomeStream {
 public:
  explicit HomeStream(const at::Tensor& tensor) : device_(cuda_device_of(tensor)) {
    if (device_) stream_ = current_stream(*device_);
  }

  /// The stream itself.
  std::optional<Stream> get() const { return stream_ ? std::optional(stream_of(*stream_)) : std::nullopt; }
  /// The stream that is current now.
  std::optional<Stream> current() const {
    return device_ ? std::optional(stream_of(current_stream(*device_))) : std::nullopt;
  }
  /// Makes it wait for the current stream.
  void catch_up() const {
    if (device_) hold_back(*stream_, current_stream(*device_));
  }
  /// Makes the current stream wait for it.
  void lead() const {
    if (device_) hold_back(current_stream(*device_), *stream_);
  }
  /// Keeps a tensor's memory for the work now in the current stream. The host has read sparse tensors already.
  void keep(const at::Tensor& tensor) const {
    if (device_ && tensor.defined() && !tensor.is_sparse()) keep_for(current_stream(*device_), tensor);
  }

 private:
  std::optional<at::Device> device_;
  std::optional<c10::Stream> stream_;
};

// ---- Operations end by running code of the program: callbacks of futures, destructors of its tensors.

using HandOver = void (*)(std::function<void()> task);

/// Receives what libddp's threads have to do at the end of an operation, from any thread; null: they do it themselves.
/// Python programs, whose tensors and callbacks must not be touched once the interpreter is gone, set it before any
/// operation.
inline std::atomic<HandOver> hand_over_to{nullptr};

inline void hand_over(std::function<void()> task) {
  if (const HandOver other = hand_over_to.load(std::memory_order_acquire)) return other(std::move(task));
  task();
}

/// Owns tensors; hand_over() destroys them.
inline std::shared_ptr<const void> owner_of(std::vector<at::Tensor> tensors) {
  return {new std::vector<at::Tensor>(std::move(tensors)),
          [](const std::vector<at::Tensor>* kept) { hand_over([kept] { delete kept; }); }};
}

// ---- Long waits within torch.distributed's calls: a binding of another language can check for signals meanwhile.

using RunInterruptibly = void (*)(std::function<void()> wait);

/// Runs a wait that may take long, perhaps on another thread, and throws its exception, or one of its own: then the
/// wait continues, so it must own all that it uses. Null: a direct call. Set once, before any operation.
inline std::atomic<RunInterruptibly> run_interruptibly{nullptr};

inline void interruptible(std::function<void()> wait) {
  if (const RunInterruptibly run = run_interruptibly.load(std::memory_order_acquire)) return run(std::move(wait));
  wait();
}

}  // namespace ddp::torch
