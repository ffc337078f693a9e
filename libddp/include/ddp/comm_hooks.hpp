// Communication hooks that send less than the gradients, or less often. docs/reference/ddp.md compares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ddp/comm_hook.hpp>

namespace ddp {

// All compute in float32: float16 and bfloat16 are converted, buckets of other types are averaged as they are. They
// take buckets on CUDA devices, too, where kernels of the backend nccl give the CPU's bits. What they keep from step to
// step is dropped, on all ranks, when a step fails and when the Reducer changes its group. Those that add what they
// have left out to the next gradient are refused with find_unused_parameters.

/// PyTorch's PowerSGDState. Equal on all ranks.
struct PowerSgdOptions {
  int rank = 1;                          ///< of the matrices that are sent: more is more exact
  std::uint64_t start_iteration = 1000;  ///< steps that average plainly before: early gradients are hard to compress
  /// A matrix of n rows and m columns is compressed if (n + m) * rank * min_compression_rate < n * m.
  double min_compression_rate = 2;
  bool error_feedback = true;           ///< add what compression left out to the next gradient
  bool warm_start = true;               ///< begin with the last step's factor instead of a random one
  float orthogonalization_epsilon = 0;  ///< added to the length by which columns are divided
  std::uint64_t seed = 0;               ///< of the random factors; the same on all ranks
};

/// PowerSGD (Vogels, Karimireddy, Jaggi: NeurIPS 2019), as PyTorch's powerSGD_hook: each gradient, as a matrix of
/// shape[0] rows, becomes the product of two factors, found by one step of power iteration; the rest is averaged. Sends
/// 4 * rank * (n + m) bytes for a matrix in two operations, the second one of which starts in finalize.
/// What is kept belongs to parameters, so buckets may be rebuilt, and start_iteration may be 0.
std::shared_ptr<CommHook> power_sgd_hook(PowerSgdOptions options = {});
/// The same for a whole bucket as one square matrix, as PyTorch's batched_powerSGD_hook: faster and less exact.
/// min_compression_rate does not count.
std::shared_ptr<CommHook> batched_power_sgd_hook(PowerSgdOptions options = {});

/// 8 bits for each element, from the bucket's smallest value to its largest in 255 steps, of which 0 is one. Each
/// rank's bucket is gathered, and summed in float32: an error of at most half a step of each rank, divided by the
/// number of ranks. A bucket with a value that is not finite becomes NaN.
std::shared_ptr<CommHook> quantize_per_tensor_hook();
/// The same for each row of 512 elements of the bucket by itself.
std::shared_ptr<CommHook> quantize_per_channel_hook();

/// Sends only the elements of largest magnitude, @p fraction of each bucket and at least one, with their positions: 8
/// bytes each. The others are added to the next gradient. @p fraction in (0, 1].
std::shared_ptr<CommHook> top_k_hook(double fraction);

/// Averages over the Reducer's group in the first @p start_iteration steps, and then over @p subgroup only, or not at
/// all without one: ranks drift apart, so average the parameters now and then (<ddp/model_averaging.hpp>). @p subgroup:
/// this rank's, such as those of its node: split_group(group, world.node_rank()). After a change of group make Reducer
/// and hook anew.
std::shared_ptr<CommHook> post_local_sgd_hook(std::uint64_t start_iteration, std::optional<ProcessGroup> subgroup = {});

/// A parameter's position in the Reducer's list, and its gradient, averaged, which is valid during the call. On a CUDA
/// device it is there for what the call puts into ReducerOptions::stream.
using OptimizerStep = std::function<void(std::size_t parameter, const TensorView& gradient)>;
/// Calls @p step for each parameter in Reducer::finalize as soon as its bucket has arrived, while later ones travel.
/// @p inner exchanges; default: the average. If a step fails some parameters have been updated with what may be wrong:
/// broadcast them, or load them again. Not with find_unused_parameters: unused parameters would be stepped, too. @p
/// inner must not take the gradients of no_sync.
std::shared_ptr<CommHook> optimizer_hook(OptimizerStep step, std::shared_ptr<CommHook> inner = {});

}  // namespace ddp
