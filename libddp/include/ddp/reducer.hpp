// Averages gradients across ranks while the backward pass still runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

inline constexpr std::size_t MiB = 1024 * 1024;

/// A parameter and its gradient, both in the caller's memory for as long as the Reducer lives.
struct Parameter {
  std::string name;     ///< as the user knows it: "layer2.weight"
  TensorView value;     ///< broadcast from rank 0 at construction
  TensorView gradient;  ///< same element type and shape as value; read by mark_ready, written by finalize
};

struct ReducerOptions {
  /// A bucket is closed when it has reached this size; it may be larger, since tensors are never split.
  /// Default 25 MiB, and first_bucket_bytes for the first bucket, to start communication early. A given value limits
  /// all buckets, the first included.
  std::optional<std::size_t> bucket_cap_bytes;
  std::size_t first_bucket_bytes = 1 * MiB;
  /// After the first step, rebuild the buckets in the order in which rank 0's gradients became ready.
  bool rebuild_buckets = true;
  /// Broadcast the values of rank 0's parameters at construction.
  bool broadcast_parameters = true;
};

/// Times of the last finished step on this rank, in the terms of PyTorch's DDP logging data.
struct ReducerStats {
  std::uint64_t iteration = 0;               ///< finished steps
  std::chrono::nanoseconds backward{};       ///< prepare_for_backward to finalize called
  std::chrono::nanoseconds communication{};  ///< first bucket launched to last bucket finished
  std::chrono::nanoseconds overlap{};        ///< the part of communication that lies within backward
};

/// The gradient averaging engine. Knows no autograd: the caller says which gradient is ready.
///
/// Per step: prepare_for_backward(); mark_ready(i) for every parameter, in any order and from any thread, as soon as
/// its gradient is final; finalize(). Afterwards every gradient holds the average over the group's ranks. Each gradient
/// is divided by the number of ranks while it is copied into its bucket (before the sum, so that half precision does
/// not overflow); buckets are reduced in index order as they fill. Construction is collective. It verifies that all
/// ranks have the same parameters and throws Error(mismatch), on every rank, with the name of the first parameter that
/// differs.
class Reducer {
 public:
  Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options = {});
  Reducer(Reducer&&) noexcept;
  Reducer& operator=(Reducer&&) noexcept;
  ~Reducer();

  /// Starts a step. Throws invalid_argument when the last step was not finalized, or has failed: ranks may be in
  /// different steps then, so the Reducer is unusable.
  void prepare_for_backward();

  /// The gradient of parameter @p index (its position in the constructor's list) is final. Thread-safe.
  /// Throws invalid_argument when marked twice in a step or outside a step.
  void mark_ready(std::size_t index);

  /// Waits for all buckets and writes the averages into the gradients. Throws invalid_argument, naming the parameters,
  /// when some were not marked ready; and the error of a reduction that failed.
  void finalize();

  /// Parameter indices of each bucket, in launch order.
  const std::vector<std::vector<std::size_t>>& buckets() const noexcept;
  const ReducerStats& stats() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
