// Streams of tensors' devices, by libtorch's own interface for every kind of device: needs no header of CUDA's.
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

/// The stream with its cudaStream_t, as libddp takes it. Throws Error(unavailable) if libtorch does not expose it, as
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

/// The one that the calling thread's work on @p device goes into.
inline c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Whether what is put into @p stream becomes part of a graph. @tparam Guard as above
template <class Guard>
bool is_captured(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) return guard.isStreamCapturing(stream);
  return false;
}

/// One for what follows an operation and shall not hold back the calling thread's own work. While that is captured,
/// its own stream: the operation is in it, too.
inline c10::Stream side_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream current = guard.getStream(device);
  return is_captured(guard, current) ? current : guard.getStreamFromGlobalPool(device);
}

/// Where @p tensor is, if that is a device with streams.
inline std::optional<at::Device> cuda_device_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? std::optional(tensor.device()) : std::nullopt;
}

/// What comes later in one stream waits for what is in another one now.
inline void hold_back(const c10::Stream& later, const c10::Stream& earlier) {
  if (later == earlier) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// Its memory is not given to others before what is in @p stream now is over, even if the tensor goes.
inline void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

/// The stream that was the current one of a tensor's device when this was made. On the host there is none, and nothing
/// to order.
class HomeStream {
 public:
  explicit HomeStream(const at::Tensor& tensor) : device_(cuda_device_of(tensor)) {
    if (device_) stream_ = current_stream(*device_);
  }

  /// Itself.
  std::optional<Stream> get() const { return stream_ ? std::optional(stream_of(*stream_)) : std::nullopt; }
  /// The current one.
  std::optional<Stream> current() const {
    return device_ ? std::optional(stream_of(current_stream(*device_))) : std::nullopt;
  }
  /// It waits for the current one.
  void catch_up() const {
    if (device_) hold_back(*stream_, current_stream(*device_));
  }
  /// The current one waits for it.
  void lead() const {
    if (device_) hold_back(current_stream(*device_), *stream_);
  }
  /// A tensor's memory stays for what the current one does with it now. Sparse ones the host has read.
  void keep(const at::Tensor& tensor) const {
    if (device_ && tensor.defined() && !tensor.is_sparse()) keep_for(current_stream(*device_), tensor);
  }

 private:
  std::optional<at::Device> device_;
  std::optional<c10::Stream> stream_;
};

// ---- Where the ends of operations run code of the program: callbacks of futures, destructors of its tensors.

using HandOver = void (*)(std::function<void()> task);

/// Gets what threads of libddp have to do at the end of an operation, from any thread; null: they do it themselves.
/// Python programs, whose tensors and callbacks must not be touched once the interpreter has gone, set it before any
/// operation.
inline std::atomic<HandOver> hand_over_to{nullptr};

inline void hand_over(std::function<void()> task) {
  if (const HandOver other = hand_over_to.load(std::memory_order_acquire)) return other(std::move(task));
  task();
}

/// Keeps tensors; the last owner's thread hands them over.
inline std::shared_ptr<const void> owner_of(std::vector<at::Tensor> tensors) {
  return {new std::vector<at::Tensor>(std::move(tensors)),
          [](const std::vector<at::Tensor>* kept) { hand_over([kept] { delete kept; }); }};
}

// ---- Long waits within torch.distributed's calls: a binding of another language can look for signals meanwhile.

using RunInterruptibly = void (*)(std::function<void()> wait);

/// Runs a wait that may take long, perhaps on another thread, and throws its exception, or one of its own: then the
/// wait continues, so it must own all that it uses. Null: it is called directly. Set once, before any operation.
inline std::atomic<RunInterruptibly> run_interruptibly{nullptr};

inline void interruptible(std::function<void()> wait) {
  if (const RunInterruptibly run = run_interruptibly.load(std::memory_order_acquire)) return run(std::move(wait));
  wait();
}

}  // namespace ddp::torch
