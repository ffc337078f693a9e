// Copies a model's and an optimizer's state from one rank to all, after comparing its layout.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// A tensor as the user knows it: "layer2.weight", "optimizer.layer2.weight.exp_avg". The memory is the caller's.
struct NamedTensor {
  std::string name;   ///< the same on all ranks
  TensorView tensor;  ///< contiguous, in the caller's memory
};

/// Copies @p root's parameters, buffers and optimizer state to all ranks; step counters and learning rates are tensors
/// of one element. First compares names, shapes and element types, in order: if they differ, every rank throws
/// Error(mismatch) with the first difference, and nothing has been copied. An optimizer that creates its state in its
/// first step must have done so on all ranks. Collective; packs like broadcast_coalesced.
/// @param stream the stream that fills CUDA tensors; default: the device's default stream.
void broadcast_state(ProcessGroup& group, std::span<const NamedTensor> tensors, int root = 0,
                     std::optional<Stream> stream = {});

}  // namespace ddp
