// A contiguous buffer that holds the gradients of several parameters while they are averaged together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ddp/reducer.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp::reducer {

/// Not thread-safe as a whole, but copy_in of different parameters may run at the same time.
class Bucket {
 public:
  /// @param indices positions in @p parameters, all of one element type and device; offsets follow their order. The
  /// memory is zeroed. @p parameters stay where they are. @p executor of the device; null if nothing is to be moved.
  Bucket(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& indices,
         const ReducerOptions& options, ProcessGroup& group, std::shared_ptr<TensorExecutor> executor);

  /// Brings @p gradient, divided by @p divisor, into the place of the @p slot-th parameter of indices; zeros if null.
  /// On a device when the bucket is filled.
  void copy_in(std::size_t slot, const void* gradient, int divisor);
  /// On a device: copies all gradients in, in one launch.
  void fill(int divisor);
  /// The reverse, undivided, to @p targets, by parameter, of those that somebody @p used. Nothing where the target is
  /// null, or in the bucket.
  void copy_out(const std::vector<void*>& targets, const std::vector<std::uint8_t>& used) const;
  /// The same to the places of gradients that live here, but are exchanged in another type.
  void copy_home(const std::vector<std::uint8_t>& used) const;
  /// The place of a parameter's gradient: with gradient_as_bucket_view as it is computed, else as it is exchanged.
  TensorView view(std::size_t slot) const;
  /// With gradient_as_bucket_view: makes @p gradients, by slot, those that live here.
  void move_in(const std::vector<const void*>& gradients);

  /// Starts averaging it over the group. The operation shares the memory, so a Bucket may be destroyed while it runs.
  /// @param divisor as in copy_in.
  Work launch(ProcessGroup& group, int divisor) const;
  bool on_cpu() const { return device().type == DeviceType::cpu; }
  Device device() const { return value(0).device(); }
  TensorExecutor& executor() const noexcept { return *executor_; }
  /// For a hook.
  GradientBucket lend(std::size_t index, bool is_last, const ProcessGroup& group) const;

 private:
  /// For what is exchanged.
  std::byte* place(std::size_t slot) const noexcept {
    return static_cast<std::byte*>(memory_.get()) + offsets_[slot] * size_of(dtype_);
  }
  /// Whether gradients are of another type than what is exchanged.
  bool casts() const noexcept { return gradient_dtype_ != dtype_; }
  /// Whether gradients are divided on their way in, else by the exchange.
  bool divides() const noexcept;
  TensorView exchanged(std::size_t slot) const;
  TensorView flat() const { return {memory_.get(), dtype_, {static_cast<std::int64_t>(elements_)}, device()}; }
  /// What a gradient is like, whether it has memory of its own or not.
  const TensorView& value(std::size_t slot) const { return (*parameters_)[indices_[slot]].value; }

  const std::vector<Parameter>* parameters_;
  const ReducerOptions* options_;
  std::vector<std::size_t> indices_;
  std::vector<std::size_t> offsets_;  ///< in elements
  DType gradient_dtype_;
  DType dtype_;  ///< of what is exchanged
  std::size_t elements_ = 0;
  std::shared_ptr<TensorExecutor> executor_;
  std::vector<const void*> sources_;  ///< by slot, on a device: to be copied in
  std::shared_ptr<void> memory_;      ///< of what is exchanged
  std::shared_ptr<void> home_;        ///< of gradients that live here, but are exchanged in another type
};

// ---- Memory for buckets and for what hooks make of them, and what moves gradients there.

/// By the program's allocator, else the C++ library's or, on a CUDA device, the group's, which may be collective.
/// Zeroed there in home_stream(), and alive until @p executor is done with it. Throws Error.
std::shared_ptr<void> bucket_memory(std::size_t bytes, Device device, const ReducerOptions& options,
                                    ProcessGroup& group, const std::shared_ptr<TensorExecutor>& executor);
/// For the CPU, by the C++ library's allocator.
std::shared_ptr<void> host_memory(std::size_t bytes);
/// The program's stream.
Stream home_stream(Device device, const ReducerOptions& options);

/// What moves gradients that are on a CUDA device; null if there are none, or they stay where they are. Throws Error
/// where they cannot be moved as the options want it.
std::shared_ptr<TensorExecutor> device_executor(const std::vector<Parameter>& parameters, const ReducerOptions& options,
                                                ProcessGroup& group);

// ---- Which parameters share a bucket: the rule of PyTorch's compute_bucket_assignment_by_size.

/// Tensor indices of each bucket.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// What the rule needs to know of a tensor.
struct TensorInfo {
  std::size_t size_bytes = 0;
  DType dtype = DType::float32;
  Device device;
};

/// Assigns tensors to buckets. Tensors of one bucket have the same element type and device. For each such kind, tensors
/// are appended in order until the bucket has reached its limit; a tensor is never split, so a bucket may exceed it.
/// The n-th bucket of a kind has the n-th limit; the last limit repeats.
/// @param order the tensor index of each entry of @p tensors, in the order in which gradients became ready; then
/// buckets
///        stay in the order in which they were closed, with those left open behind them (the kind whose first tensor
///        came first leading). Empty: entry i is tensor i, and buckets are sorted by their smallest index.
/// Throws Error(invalid_argument) when @p size_limits is empty.
BucketPlan assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> size_limits,
                          std::span<const std::size_t> order = {});

}  // namespace ddp::reducer
