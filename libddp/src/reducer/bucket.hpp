// A contiguous buffer that holds the gradients of several parameters while they are averaged together.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Not thread-safe as a whole, but copy_in of different parameters may run at the same time.
class Bucket {
 public:
  /// @param indices positions in @p parameters, all of one element type; offsets follow their order.
  Bucket(const std::vector<Parameter>& parameters, std::vector<std::size_t> indices);

  const std::vector<std::size_t>& indices() const noexcept { return indices_; }
  /// Writes parameter @p slot's gradient, divided by @p divisor, into its place. @p slot: position in indices().
  void copy_in(std::size_t slot, const TensorView& gradient, int divisor);
  /// The reverse, undivided.
  void copy_out(std::size_t slot, const TensorView& gradient) const;
  /// Starts averaging it over the group. The operation shares the memory, so a Bucket may be destroyed while it runs.
  Work launch(ProcessGroup& group) const;

 private:
  std::vector<std::size_t> indices_;
  std::vector<std::size_t> offsets_;  ///< in elements
  DType dtype_;
  std::size_t elements_ = 0;
  std::shared_ptr<std::vector<std::byte>> memory_;
};

}  // namespace ddp::reducer
