// How a bucket of gradients is exchanged among ranks: what a program can put in the place of the average.
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

/// The gradients of several parameters in one memory, undivided. The views are valid until the bucket's exchange ends.
///
/// A bucket on a CUDA device is filled by work in executor->stream(), and later work there reads the result: a hook
/// puts its own work into that stream, gives it to operations as CallOptions::stream, and calls
/// executor->wait_for(work) instead of Work::wait.
struct GradientBucket {
  std::size_t index = 0;                     ///< from 0, in the order of launches
  bool is_last = false;                      ///< of the step
  TensorView buffer;                         ///< one dimension; holds the final gradients when the exchange ends
  std::vector<std::size_t> parameters;       ///< positions in the Reducer's list
  std::vector<TensorView> gradients{};       ///< parts of buffer, in the order of `parameters`
  std::shared_ptr<void> memory;              ///< owns the buffer, for CallOptions::keep_alive
  std::shared_ptr<TensorExecutor> executor;  ///< moves what is in it
  std::optional<Stream> program{};           ///< ReducerOptions::stream of a bucket on a CUDA device
  /// More memory where the buffer is, aligned to 64 bytes, which may be dropped at any time. On a CUDA device by
  /// ReducerOptions::allocator, else collective: all ranks take the same, in the order of their buckets. In start() and
  /// add_leaf().
  std::function<std::shared_ptr<void>(std::size_t bytes)> allocate{};
};

/// The end of an exchange: blocks until the buffer holds the result, on a CUDA device until the stream will. Called
/// once, by Reducer::finalize, in the order of the buckets; throws when the exchange has failed.
using BucketExchange = std::function<void()>;

/// A communication hook. One object for each Reducer and rank; every rank has the same hooks. It may keep state, such
/// as the errors of its compression.
class CommHook {
 public:
  CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;
  virtual ~CommHook() = default;

  /// Compared among ranks when a Reducer is made: the algorithm and its settings.
  virtual std::string name() const = 0;

  /// Starts the exchange. The hook divides, if the result is to be an average. Called once for every bucket of a step,
  /// in the order of index, never twice at the same time, on the thread that filled the bucket: it should not wait for
  /// other ranks here, but in what it returns, or continue in Work::on_finish. Throws to fail the step.
  virtual BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) = 0;

  /// The Reducer is made with this group, or continues with it: forget what was kept of earlier gradients, since other
  /// ranks may have come to another end of the last step, or be new. Collective: may exchange something. Throws to fail
  /// the Reducer.
  virtual void join_group(ProcessGroup& group);
  /// A step that exchanges has ended. @param complete else it has failed: drop what is under way and what the step has
  /// changed. If the Reducer continues in the same group, it has failed on all ranks.
  virtual void end_step(bool complete) noexcept;

  /// Whether it wants the gradients of each step of Reducer::no_sync by themselves, instead of their sum in the next
  /// bucket: then finalize gives them to add_leaf, and sets them to 0.
  virtual bool takes_leaves() const { return false; }
  /// The gradients of a step of no_sync; called only if takes_leaves().
  virtual void add_leaf(const GradientBucket& bucket);

  /// Whether the results of all parameters must count, as when it adds what it has not sent to the next gradient. Then
  /// it is refused with find_unused_parameters, where gradients of parameters that no rank has used stay as they are.
  virtual bool needs_all_parameters() const { return false; }

  /// Whether it takes buckets on CUDA devices, too. Else it is refused when a Reducer with gradients there is made.
  virtual bool serves_cuda() const { return false; }
};

/// Divides by the number of ranks, then sums: what a Reducer does without a hook.
std::shared_ptr<CommHook> all_reduce_hook();

/// Combines by @p op, and divides only for an average.
std::shared_ptr<CommHook> reduce_hook(ReduceOp op);

/// float32 buckets are sent as @p wire, float16 or bfloat16: divided and rounded at once, summed, converted back.
/// Buckets of other types are sent as they are. Throws Error(invalid_argument) for another @p wire.
std::shared_ptr<CommHook> compress_hook(DType wire);

/// Gives @p inner float32 buckets as @p wire, and converts the results back. @p inner divides; default: the average.
std::shared_ptr<CommHook> compress_wrapper(DType wire, std::shared_ptr<CommHook> inner = {});

/// Averages bit-identically: the result depends on the leaves alone, which are the gradients of each step, those of
/// no_sync included, on all ranks; not on how many ranks they are spread over, in which order, or over which backend
/// and buckets. It is the sum of all leaves divided by their number: do not scale gradients by the number of ranks.
/// Each gradient is rounded to a multiple of 2^-64 and added in integers: exact, at most 524,288 leaves. A parameter
/// that is 2^23 or larger somewhere, or not finite, becomes NaN. Sends 16 bytes for each element, float16, bfloat16,
/// float32 and float64. A step that has failed takes the leaves before it along.
std::shared_ptr<CommHook> exact_average_hook();

/// Exchanges nothing, so that each rank keeps its own gradients: shows what communication costs.
std::shared_ptr<CommHook> noop_hook();

}  // namespace ddp
