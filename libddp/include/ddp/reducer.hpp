// Averages gradients across ranks while the backward pass still runs. Guide: docs/reference/ddp.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/comm_hook.hpp>
#include <ddp/ddp_log.hpp>
#include <ddp/process_group.hpp>
#include <ddp/recorded_order.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

class Joinable;

inline constexpr std::size_t MiB = 1024 * 1024;  ///< bytes

/// A parameter and its gradient, both in the caller's memory for as long as the Reducer lives. Leave out parameters
/// that should be neither compared nor broadcast nor averaged.
struct Parameter {
  std::string name;  ///< as the user knows it: "layer2.weight"
  /// Broadcast from rank 0 at construction. Parameters with the same value memory are one shared parameter:
  /// its gradient is ready when each of its names has been marked.
  TensorView value;
  /// Same element type and shape as value; read by mark_ready, written by finalize. If empty, its
  /// memory is in the bucket (gradient_as_bucket_view), or is passed to each mark_ready.
  TensorView gradient{};
  /// Strides of value and gradient in memory, in elements, if they are not row-major; the TensorViews then show that
  /// memory as it is. Only compared: elements are averaged in the order of memory.
  std::vector<std::int64_t> strides{};
  /// false: it is only compared and broadcast.
  bool requires_gradient = true;
  /// Its gradient is passed as a SparseGradient and exchanged by rows, outside the buckets and without a hook. Needs
  /// one dimension or more, row-major.
  bool sparse_gradient = false;
};

/// Some rows of a gradient, in the caller's memory, on the parameter's device; the others are zero.
struct SparseGradient {
  TensorView rows;    ///< int64[n]: positions in the parameter's first dimension, in any order; may repeat
  TensorView values;  ///< n rows in the parameter's element type
};

/// Returns memory for a bucket, aligned to 64 bytes; freed when the last copy of the pointer goes. On a CUDA device it
/// is zeroed by work that precedes all later work of ReducerOptions::stream; the last copy is dropped when the device
/// has finished with the bucket, on any thread.
using BucketAllocator = std::function<std::shared_ptr<void>(std::size_t bytes, Device device)>;

/// Equal on all ranks, except gradient_as_bucket_view, allocator, moved_in, stream, the log and the counts of
/// recorded_order.
struct ReducerOptions {
  /// A bucket is closed once it has reached this size; it may be larger, since tensors are never split.
  /// Default: 25 MiB, and first_bucket_bytes for the first bucket, so that communication starts early. A given value
  /// limits all buckets, including the first.
  std::optional<std::size_t> bucket_cap_bytes{};
  std::size_t first_bucket_bytes = 1 * MiB;  ///< limit of the first bucket, unless bucket_cap_bytes is given
  /// Instead: limits of the first, second, ... bucket of each element type; the last one repeats.
  std::vector<std::size_t> bucket_caps_bytes{};
  /// After the first step, rebuild the buckets in the order in which rank 0's gradients became ready. Not with
  /// find_unused_parameters, except with static_graph.
  bool rebuild_buckets = true;
  /// Broadcast the values of rank 0's parameters at construction.
  bool broadcast_parameters = true;
  /// Gradients live in the buckets, at bucket_view(): saves one copy and its memory.
  bool gradient_as_bucket_view = false;
  /// Parameters may have no gradient on some or all ranks in a step: those passed to prepare_for_backward, and those
  /// that are not marked before finalize.
  bool find_unused_parameters = false;
  /// Every step marks the same parameters as often as the first one. The first step only counts, and averages in
  /// finalize; from then on a parameter is ready when it has been marked that often.
  bool static_graph = false;
  /// A bucket whose parameters are all given as unused is not exchanged, from a group's second step on. All ranks must
  /// give the same parameters.
  bool skip_all_reduce_unused = false;
  /// With find_unused_parameters: gradients that no rank used get results, too: zeros, and what a hook has kept for
  /// them; used() is always true. For hooks that need all parameters.
  bool write_unused = false;
  /// Parameters in the order in which their gradients become ready, if known: ready_order() of an earlier run.
  /// The first step then has its final buckets, and none are rebuilt.
  std::vector<std::size_t> ready_order{};
  /// Instead: an earlier run's recorded_order(), of the same parameters. With static_graph, the first step then need
  /// not count: its buckets start during the backward pass.
  std::optional<RecordedOrder> recorded_order{};
  /// A text for each buffer that broadcast_buffers() will copy, such as its name, element type and shape. Only
  /// compared.
  std::vector<std::string> buffers{};
  /// Parameters that share buckets of their own, of any size, after all others: exchanged together, once the last one
  /// is ready.
  std::vector<std::size_t> delayed{};
  /// The delayed buckets follow this parameter's bucket, once they are ready, instead of all others.
  std::optional<std::size_t> delayed_behind{};
  /// Gradients of floating-point types other than float64 are exchanged and added in this type, one of float32, float16
  /// and bfloat16: divided and rounded once on the way into the bucket, and converted back to their own type. float16
  /// parameters cannot be reduced in bfloat16, or vice versa. Limits of buckets count the gradients' own bytes.
  std::optional<DType> reduce_dtype{};
  std::shared_ptr<CommHook> comm_hook{};  ///< instead of the average
  BucketAllocator allocator{};            ///< default: the C++ library's; ProcessGroup::allocate on CUDA devices
  /// With gradient_as_bucket_view: gradients that were marked or placed in other memory move to bucket_view() when
  /// their bucket is full, all in one launch on a device. Then this is called with the bucket's parameters: from now on
  /// their gradients are there, for later work in the streams that computed them, and the other memory may be freed;
  /// finalize does not write to it. Called by the thread that filled the bucket, one call at a time; must not call the
  /// Reducer except for bucket_view().
  std::function<void(std::span<const std::size_t> parameters)> moved_in{};
  /// For parameters on a CUDA device: the stream that computes gradients, unless mark_ready names another one; default:
  /// the device's default stream. Buckets wait for the work in it when their last gradient is marked; finalize makes it
  /// wait for the averages, and does not block.
  std::optional<Stream> stream{};
  DdpLogOptions log{};  ///< sampling of the log
};

/// Times of the last finished step on this rank, in the terms of PyTorch's DDP logging data.
struct ReducerStats {
  std::uint64_t iteration = 0;               ///< finished steps, without those of no_sync
  std::chrono::nanoseconds backward{};       ///< prepare_for_backward to the call of finalize
  std::chrono::nanoseconds communication{};  ///< first bucket's launch to last one's end; 0 on CUDA devices: unknown
  std::chrono::nanoseconds overlap{};        ///< the part of communication that lies within backward
};

/// The gradient averaging engine. It knows nothing of autograd: the caller reports which gradient is ready.
///
/// Per step: prepare_for_backward(); mark_ready(i) for every parameter, in any order and from any thread, as soon as
/// its gradient is final; finalize(). Afterwards every gradient holds the average over the group's ranks. Each gradient
/// is divided by the number of ranks while it is copied into its bucket (before the sum, so that half precision does
/// not overflow); buckets are exchanged in index order as they fill. Construction is collective. It verifies that all
/// ranks have the same parameters and options and throws Error(mismatch), on every rank, with the name of the first
/// parameter that differs. If only some ranks find a mistake, such as gradients that share memory, every rank throws
/// Error(invalid_argument) that names these ranks. All calls except mark_ready come from one thread at a time.
///
/// Gradients on a CUDA device are copied, divided and cast by work in the Reducer's own stream, which no call waits
/// for: neither mark_ready nor finalize blocks until the device is done, except for sparse gradients, which finalize
/// moves through the CPU's memory. Hooks without serves_cuda() are refused. With gradient_as_bucket_view the backend
/// divides the bucket instead. Later calls report device errors that occur after finalize.
class Reducer {
 public:
  /// Collective. The caller owns the memory of @p parameters, which must outlive this object. Throws as above.
  Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options = {});
  Reducer(Reducer&&) noexcept;             ///< between steps; @p other may only be destroyed or assigned to
  Reducer& operator=(Reducer&&) noexcept;  ///< likewise
  ~Reducer();

  /// Starts a step. Until ready_order() is set, it or Join::finish may rebuild the buckets: call bucket_view() again
  /// afterwards.
  /// @param unused parameters without a gradient in this step; needs find_unused_parameters. Their gradients count as
  /// they are: an accumulated one is averaged, one without memory is zero.
  /// Throws invalid_argument if the last step was not finalized, or has failed: ranks may then be in different steps,
  /// so the Reducer is unusable.
  void prepare_for_backward(std::span<const std::size_t> unused = {});

  /// The gradient of parameter @p index (its position in the constructor's list) is final. Thread-safe.
  /// Throws invalid_argument if it is marked too often in a step, or outside a step.
  void mark_ready(std::size_t index);
  /// The same for a gradient on a CUDA device that is final once the work now in @p producer, another stream than
  /// ReducerOptions::stream, is done. @p producer must live until finalize, which makes it wait, too.
  void mark_ready(std::size_t index, const Stream& producer);
  /// The same for a gradient in other memory, which finalize writes to. The memory must live until then; after a step
  /// of no_sync, until the next finalize.
  void mark_ready(std::size_t index, const TensorView& gradient);
  /// Both: other memory, and the stream that computes it.
  void mark_ready(std::size_t index, const TensorView& gradient, const Stream& producer);

  /// The same for a parameter with sparse_gradient, which finalize does not write to: see sparse_average().
  void mark_ready(std::size_t index, const SparseGradient& gradient);
  /// The same with the stream that computes it.
  void mark_ready(std::size_t index, const SparseGradient& gradient, const Stream& producer);

  /// Where the gradient of a parameter is until the next finalize, if it is not marked: an accumulated one counts.
  /// Without memory: zeros. Call it between steps; with gradient_as_bucket_view only if moved_in is given.
  void place_gradient(std::size_t index, const TensorView& gradient);
  /// The same for a parameter with sparse_gradient.
  void place_gradient(std::size_t index, const SparseGradient& gradient);

  /// Waits for all buckets and writes the averages into the gradients, except those of parameters that no rank used.
  /// Throws the error of an exchange that failed. Call it after every mark_ready has returned. If a rank has parameters
  /// that were not marked ready, every rank throws the same invalid_argument, which names rank and parameters; the next
  /// step may follow then. After any error, the gradients are meaningless.
  void finalize();

  /// Abandons the step that has begun, if any, because its backward pass failed on this rank. If nothing has been
  /// exchanged yet, the next step takes its place, and the other ranks notice nothing. Otherwise its exchange is
  /// completed with zeros: every rank that finalizes it throws invalid_argument that names this one, and the next step
  /// may follow. Throws the error of an exchange that failed. @return whether the next step takes its place.
  bool give_up();

  /// While one of these lives, steps that are started exchange nothing, and gradients stay local: for accumulation. The
  /// next step without one averages what has accumulated. Use it on all ranks for the same steps.
  class [[nodiscard]] NoSync {
   public:
    /// Takes over; @p other no longer has an effect.
    NoSync(NoSync&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    ~NoSync() {
      if (depth_ != nullptr) --*depth_;
    }

   private:
    friend class Reducer;
    explicit NoSync(int& depth) noexcept : depth_(&depth) { ++depth; }
    int* depth_;
  };
  /// The Reducer must outlive the result.
  NoSync no_sync();

  /// A parameter's part of its bucket, which holds the average after finalize, in reduce_dtype; with
  /// gradient_as_bucket_view, its gradient, in its own type. Valid until buckets are rebuilt. In a group of one rank
  /// without view and hook: the gradient itself.
  TensorView bucket_view(std::size_t index) const;

  /// After finalize, for a parameter with sparse_gradient: the average over all ranks, rows ascending, each once; none
  /// if no rank used it. Valid until the next finalize. On a CUDA device, for later work in the streams that
  /// finalize makes wait.
  SparseGradient sparse_average(std::size_t index) const;

  /// Whether any rank has marked it in the last step, or in the steps of no_sync before it. Always true unless unused
  /// parameters are searched for.
  bool used(std::size_t index) const;

  /// Copies rank 0's buffers, or @p root's, to all ranks, unless the step before was one of no_sync: before a forward
  /// pass or after it. Collective. Like broadcast_coalesced.
  void broadcast_buffers(std::span<const TensorView> buffers, int root = 0);

  /// Continues with another group: between steps, collective over the new one. Compares the parameters there, and
  /// rebuilds the buckets once more after the next step.
  void change_group(ProcessGroup group);

  /// For a Join, of ranks with different numbers of steps. Keeps its address when the Reducer is moved, and ends with
  /// it. @param buffers what broadcast_buffers copies meanwhile, and the Join at its end.
  Joinable& joinable(std::vector<TensorView> buffers = {});

  /// Parameter indices of each bucket, in launch order.
  const std::vector<std::vector<std::size_t>>& buckets() const noexcept;
  /// Rank 0's order of gradients that the buckets follow; empty until they were rebuilt. The reversed list if rank 0
  /// had no inputs then.
  const std::vector<std::size_t>& ready_order() const noexcept;
  /// The same for a later run of the same model, with how often this rank marks each parameter of a static graph.
  /// Throws Error(invalid_argument) while ready_order() is empty, or marks are still being counted.
  RecordedOrder recorded_order() const;
  const ReducerStats& stats() const noexcept;  ///< of the last finished step; valid as long as this object

  /// Records for the log that a forward pass begins.
  void start_forward();
  DdpLog log() const;  ///< the data so far; see DdpLog
  /// Records the times of each bucket in this many steps, beginning with the next; discards an earlier trace. Costs
  /// some clock readings per bucket, and nothing when off. Throws invalid_argument within a step.
  void trace(std::size_t steps);
  /// The trace for chrome://tracing and Perfetto: when each bucket's gradients were computed, and when it was ready,
  /// launched and done; the last is unknown for buckets on CUDA devices. Traces of several ranks can be merged: their
  /// times count from the epoch.
  std::string trace_json() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
