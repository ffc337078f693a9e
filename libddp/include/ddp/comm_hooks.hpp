// Communication hooks that send less than the gradients, or less often. docs/reference/ddp.md compares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ddp/comm_hook.hpp>

namespace ddp {

// All compute in float32: float16 and bfloat16 are converted, buckets of other types are averaged unchanged. They
// support buckets on CUDA devices, where kernels of the backend nccl give the CPU's bits. What they keep from step to
// step is dropped, on all ranks, when a step fails and when the Reducer changes its group. Those that add what they
// left out to the next gradient are refused with find_unused_parameters, unless with write_unused.

/// The options of PyTorch's PowerSGDState. Equal on all ranks.
struct PowerSgdOptions {
  int rank = 1;                          ///< of the matrices that are sent: larger is more exact
  std::uint64_t start_iteration = 1000;  ///< steps that average plainly first: early gradients compress badly
  /// A matrix of n rows and m columns is compressed if (n + m) * rank * min_compression_rate < n * m.
  double min_compression_rate = 2;
  bool error_feedback = true;           ///< add what compression left out to the next gradient
  bool warm_start = true;               ///< start from the last step's factor instead of a random one
  float orthogonalization_epsilon = 0;  ///< added to the length that columns are divided by
  std::uint64_t seed = 0;               ///< of the random factors; equal on all ranks
};

/// PowerSGD (Vogels, Karimireddy, Jaggi: NeurIPS 2019), like PyTorch's powerSGD_hook: each gradient, as a matrix of
/// shape[0] rows, becomes the product of two factors, found by one step of power iteration; the rest is averaged. Sends
/// 4 * rank * (n + m) bytes for a matrix in two operations, the second of which starts in finalize.
/// State belongs to parameters, so buckets may be rebuilt, and start_iteration may be 0.
std::shared_ptr<CommHook> power_sgd_hook(PowerSgdOptions options = {});
/// The same for a whole bucket as one square matrix, like PyTorch's batched_powerSGD_hook: faster and less exact.
/// Ignores min_compression_rate.
std::shared_ptr<CommHook> batched_power_sgd_hook(PowerSgdOptions options = {});

/// Sends 8 bits per element: the range from the bucket's smallest value to its largest in 255 steps, one of which is 0.
/// Ranks gather the buckets and sum them in float32: the error is at most half a step per rank, divided by the number
/// of ranks. A bucket with a value that is not finite becomes NaN.
std::shared_ptr<CommHook> quantize_per_tensor_hook();
/// The same, separately for each row of 512 elements of the bucket.
std::shared_ptr<CommHook> quantize_per_channel_hook();

/// Sends only the elements of largest magnitude, @p fraction of each bucket and at least one, with their positions: 8
/// bytes each. Adds the others to the next gradient. Throws Error(invalid_argument) unless 0 < @p fraction <= 1.
std::shared_ptr<CommHook> top_k_hook(double fraction);

/// Averages over the Reducer's group in the first @p start_iteration steps, then over @p subgroup only, or not at all
/// without one: ranks drift apart, so average the parameters now and then (<ddp/model_averaging.hpp>). @p subgroup:
/// this rank's, such as the ranks of its node: split_group(group, world.node_rank()). After a change of group, make a
/// new Reducer and a new hook.
std::shared_ptr<CommHook> post_local_sgd_hook(std::uint64_t start_iteration, std::optional<ProcessGroup> subgroup = {});

/// Gets a parameter's position in the Reducer's list, and its averaged gradient, which is valid during the call. On a
/// CUDA device the gradient is ready for work that the call enqueues in ReducerOptions::stream.
using OptimizerStep = std::function<void(std::size_t parameter, const TensorView& gradient)>;
/// Calls @p step for each parameter in Reducer::finalize as soon as its bucket has arrived, while later ones are under
/// way. @p inner exchanges; default: the average. It must not take the gradients of no_sync. If a step fails, some
/// parameters may have been updated with wrong gradients: broadcast them, or load them again. Refused with
/// find_unused_parameters, since unused parameters would be stepped, too.
std::shared_ptr<CommHook> optimizer_hook(OptimizerStep step, std::shared_ptr<CommHook> inner = {});

}  // namespace ddp
