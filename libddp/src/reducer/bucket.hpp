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
         const BucketAllocator& allocator);

  /// Writes @p gradient, divided by @p divisor, into the place of the @p slot-th parameter of indices; zeros if null.
  void copy_in(std::size_t slot, const void* gradient, int divisor);
  /// The reverse, undivided. Nothing where @p gradient is null, or in the bucket.
  void copy_out(std::size_t slot, void* gradient) const;
  /// The place of a parameter's gradient.
  TensorView view(std::size_t slot) const;

  /// Starts averaging it over the group. The operation shares the memory, so a Bucket may be destroyed while it runs.
  Work launch(ProcessGroup& group, const std::optional<Stream>& stream) const;
  bool on_cpu() const { return value(0).device().type == DeviceType::cpu; }
  /// For a hook.
  GradientBucket lend(std::size_t index, bool is_last) const;

 private:
  std::byte* place(std::size_t slot) const noexcept {
    return static_cast<std::byte*>(memory_.get()) + offsets_[slot] * size_of(dtype_);
  }
  /// What a gradient is like, whether it has memory of its own or not.
  const TensorView& value(std::size_t slot) const { return (*parameters_)[indices_[slot]].value; }

  const std::vector<Parameter>* parameters_;
  std::vector<std::size_t> indices_;
  std::vector<std::size_t> offsets_;  ///< in elements
  DType dtype_;
  std::size_t elements_ = 0;
  std::shared_ptr<void> memory_;
};

}  // namespace ddp::reducer
