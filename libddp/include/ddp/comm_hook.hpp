// How ranks exchange a bucket of gradients: what a program can substitute for the average.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/process_group.hpp>
#include <ddp/tensor_executor.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// The gradients of several parameters in one block of memory, undivided. The views are valid until the exchange ends.
///
/// A bucket on a CUDA device is filled by work in executor->stream(), and later work there reads the result: a hook
/// enqueues its own work in that stream, passes it to operations as CallOptions::stream, and calls
/// executor->wait_for(work) instead of Work::wait.
struct GradientBucket {
  std::size_t index = 0;                     ///< from 0, in the order of launches
  bool is_last = false;                      ///< the last bucket of the step
  TensorView buffer;                         ///< one dimension; holds the final gradients when the exchange ends
  std::vector<std::size_t> parameters;       ///< positions in the Reducer's list
  std::vector<TensorView> gradients{};       ///< parts of buffer, in the order of `parameters`
  std::shared_ptr<void> memory;              ///< owns the buffer, for CallOptions::keep_alive
  std::shared_ptr<TensorExecutor> executor;  ///< copies, divides and casts its elements
  std::optional<Stream> program{};           ///< ReducerOptions::stream, for a bucket on a CUDA device
  /// Returns more memory on the buffer's device, aligned to 64 bytes, which may be dropped at any time. On a CUDA
  /// device by ReducerOptions::allocator, else collective: all ranks allocate the same sizes, in the order of their
  /// buckets. Callable in start() and add_leaf().
  std::function<std::shared_ptr<void>(std::size_t bytes)> allocate{};
};

/// The rest of an exchange: blocks until the buffer holds the result; on a CUDA device, until the stream will. Called
/// once, by Reducer::finalize, in the order of the buckets; throws if the exchange has failed.
using BucketExchange = std::function<void()>;

/// A communication hook. Each Reducer on each rank has its own object; every rank uses the same hooks. It may keep
/// state, such as its compression errors.
class CommHook {
 public:
  CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;
  virtual ~CommHook() = default;

  /// The algorithm and its settings; compared among ranks when a Reducer is constructed.
  virtual std::string name() const = 0;

  /// Starts the exchange. The hook divides if the result is to be an average. Called once for every bucket of a step,
  /// in the order of index, never concurrently, on the thread that filled the bucket: it should not wait for other
  /// ranks here, but in the function that it returns, or continue in Work::on_finish. Throws to fail the step.
  virtual BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) = 0;

  /// The Reducer starts with this group, or changes to it: drop what was kept of earlier gradients, since other ranks
  /// may be new, or may have ended the last step differently. Collective: may communicate. Throws to fail the
  /// Reducer.
  virtual void join_group(ProcessGroup& group);
  /// A step that exchanges has ended. @param complete false: it failed, so drop pending work and what the step has
  /// changed. If the Reducer continues in the same group, it failed on all ranks.
  virtual void end_step(bool complete) noexcept;

  /// Whether it wants the gradients of each step of Reducer::no_sync separately, instead of their sum in the next
  /// bucket: finalize then passes them to add_leaf, and sets them to 0.
  virtual bool takes_leaves() const { return false; }
  /// The gradients of a step of no_sync; called only if takes_leaves().
  virtual void add_leaf(const GradientBucket& bucket);

  /// Whether the results of all parameters must be used, as when it adds what it did not send to the next gradient. It
  /// is then refused with find_unused_parameters, which leaves gradients that no rank used unchanged, unless with
  /// write_unused.
  virtual bool needs_all_parameters() const { return false; }

  /// Whether it supports buckets on CUDA devices. If not, a Reducer with gradients there refuses it when constructed.
  virtual bool serves_cuda() const { return false; }
};

/// Divides by the number of ranks, then sums: what a Reducer does without a hook.
std::shared_ptr<CommHook> all_reduce_hook();

/// Reduces with @p op, and divides only for an average.
std::shared_ptr<CommHook> reduce_hook(ReduceOp op);

/// Sends float32 buckets as @p wire, float16 or bfloat16: divides and rounds in one step, sums, converts back. Sends
/// buckets of other types unchanged. Throws Error(invalid_argument) for another @p wire.
std::shared_ptr<CommHook> compress_hook(DType wire);

/// Passes float32 buckets to @p inner as @p wire, and converts the results back. @p inner divides; default: average.
std::shared_ptr<CommHook> compress_wrapper(DType wire, std::shared_ptr<CommHook> inner = {});

/// Averages bit-identically: the result depends only on the leaves, which are the gradients of each step on all ranks,
/// those of no_sync included; not on the number of ranks, their order, the backend or the buckets. It is the sum of all
/// leaves divided by their number, so do not scale gradients by the number of ranks.
/// Each gradient is rounded to a multiple of 2^-64 and added in integers: exact, for at most 524,288 leaves. A
/// parameter whose gradient is 2^23 or larger somewhere, or not finite, becomes NaN. Sends 16 bytes per element; for
/// float16, bfloat16, float32 and float64. A step that fails also discards the leaves before it.
std::shared_ptr<CommHook> exact_average_hook();

/// Exchanges nothing, so each rank keeps its own gradients: shows what communication costs.
std::shared_ptr<CommHook> noop_hook();

}  // namespace ddp
