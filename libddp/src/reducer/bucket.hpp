// A contiguous buffer that holds the gradients of several parameters while they are averaged together.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Not thread-safe as a whole, but copy_in of different parameters may run at the same time.
class Bucket {
 public:
  /// @param indices positions in @p parameters, all of one element type; offsets follow their order. The memory is
  /// zeroed. @p parameters stay where they are. On a CUDA device gradients can only be in the bucket.
  Bucket(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& indices,
         const ReducerOptions& options);

  /// Writes @p gradient, divided by @p divisor, into the place of the @p slot-th parameter of indices; zeros if null.
  void copy_in(std::size_t slot, const void* gradient, int divisor);
  /// The reverse, undivided. Nothing where @p gradient is null, or in the bucket.
  void copy_out(std::size_t slot, void* gradient) const;
  /// The place of a parameter's gradient: with gradient_as_bucket_view as it is computed, else as it is exchanged.
  TensorView view(std::size_t slot) const;
  /// With gradient_as_bucket_view: makes @p gradient the one that lives here.
  void move_in(std::size_t slot, const void* gradient);

  /// Starts averaging it over the group. The operation shares the memory, so a Bucket may be destroyed while it runs.
  Work launch(ProcessGroup& group, const std::optional<Stream>& stream) const;
  bool on_cpu() const { return value(0).device().type == DeviceType::cpu; }
  /// For a hook.
  GradientBucket lend(std::size_t index, bool is_last) const;

 private:
  /// Of what is exchanged.
  std::byte* place(std::size_t slot) const noexcept {
    return static_cast<std::byte*>(memory_.get()) + offsets_[slot] * size_of(dtype_);
  }
  /// Whether gradients are of another type than what is exchanged.
  bool casts() const noexcept { return gradient_dtype_ != dtype_; }
  TensorView exchanged(std::size_t slot) const;
  /// What a gradient is like, whether it has memory of its own or not.
  const TensorView& value(std::size_t slot) const { return (*parameters_)[indices_[slot]].value; }

  const std::vector<Parameter>* parameters_;
  std::vector<std::size_t> indices_;
  std::vector<std::size_t> offsets_;  ///< in elements
  DType gradient_dtype_;
  DType dtype_;  ///< of what is exchanged
  std::size_t elements_ = 0;
  std::shared_ptr<void> memory_;  ///< of what is exchanged
  std::shared_ptr<void> home_;    ///< of gradients that live here, but are exchanged in another type
};

}  // namespace ddp::reducer
