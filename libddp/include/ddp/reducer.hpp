// Averages gradients across ranks while the backward pass still runs. docs/reference/ddp.md is its guide.
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

/// A parameter and its gradient, both in the caller's memory for as long as the Reducer lives. Leave out what shall be
/// neither compared nor broadcast nor averaged.
struct Parameter {
  std::string name;  ///< as the user knows it: "layer2.weight"
  /// Broadcast from rank 0 at construction. Parameters with the same value memory are one parameter that is shared:
  /// its gradient is ready when each of its names has been marked.
  TensorView value;
  /// Same element type and shape as value; read by mark_ready, written by finalize. Left out, its
  /// memory is in the bucket (gradient_as_bucket_view), or is given in each mark_ready.
  TensorView gradient{};
  /// How value and gradient lie in their memory, in elements, if it is not row-major; the TensorViews then are views of
  /// that memory as it is. Only compared: elements are averaged in the order of memory.
  std::vector<std::int64_t> strides{};
  /// Else it is compared and broadcast only.
  bool requires_gradient = true;
  /// Its gradient is given as SparseGradient, exchanged by rows, outside the buckets and without a hook. For one
  /// dimension or more, row-major.
  bool sparse_gradient = false;
};

/// Some rows of a gradient, in the caller's memory, on the parameter's device; the others are zero.
struct SparseGradient {
  TensorView rows;    ///< int64[n]: positions in the parameter's first dimension, in any order, several times, too
  TensorView values;  ///< n rows in the parameter's element type
};

/// Returns memory for a bucket, aligned to 64 bytes; freed when the last copy of the pointer goes. On a CUDA device it
/// is zeroed by work that comes before all later work of ReducerOptions::stream; the last copy may be dropped on any
/// thread, which happens when the device has finished with the bucket.
using BucketAllocator = std::function<std::shared_ptr<void>(std::size_t bytes, Device device)>;

/// Equal on all ranks, but for gradient_as_bucket_view, allocator, moved_in, stream, the log and the counts of
/// recorded_order.
struct ReducerOptions {
  /// A bucket is closed when it has reached this size; it may be larger, since tensors are never split.
  /// Default 25 MiB, and first_bucket_bytes for the first bucket, to start communication early. A given value limits
  /// all buckets, the first included.
  std::optional<std::size_t> bucket_cap_bytes{};
  std::size_t first_bucket_bytes = 1 * MiB;  ///< limit of the first bucket, unless bucket_cap_bytes is given
  /// Instead: of the first, second, ... bucket of each element type; the last one repeats.
  std::vector<std::size_t> bucket_caps_bytes{};
  /// After the first step, rebuild the buckets in the order in which rank 0's gradients became ready. Not with
  /// find_unused_parameters, unless with static_graph.
  bool rebuild_buckets = true;
  /// Broadcast the values of rank 0's parameters at construction.
  bool broadcast_parameters = true;
  /// Gradients live in the buckets, at bucket_view(): saves one copy and its memory.
  bool gradient_as_bucket_view = false;
  /// Parameters may stay without a gradient on some or all ranks in a step: those given to prepare_for_backward, and
  /// those that are not marked until finalize.
  bool find_unused_parameters = false;
  /// Every step marks the same parameters as often as the first one. The first step only counts, and averages in
  /// finalize; from then on a parameter is ready when it has been marked that often.
  bool static_graph = false;
  /// A bucket whose parameters are all given as unused is not exchanged, from a group's second step on. All ranks must
  /// give the same ones.
  bool skip_all_reduce_unused = false;
  /// Parameters in the order in which their gradients become ready, if it is known: ready_order() of an earlier run.
  /// Then the first step has its final buckets, and none are rebuilt.
  std::vector<std::size_t> ready_order{};
  /// Instead: an earlier run's recorded_order(), of the same parameters. With static_graph the first step need not
  /// count then: its buckets go while the backward pass runs.
  std::optional<RecordedOrder> recorded_order{};
  /// A text for each buffer that broadcast_buffers() will bring, such as its name, element type and shape. Only
  /// compared.
  std::vector<std::string> buffers{};
  /// Parameters that share buckets of their own, of any size, after all others: exchanged together, when the last one
  /// is ready.
  std::vector<std::size_t> delayed{};
  /// A parameter after whose bucket the delayed ones go, as soon as they are ready, instead of after all others.
  std::optional<std::size_t> delayed_behind{};
  /// Gradients of floating-point types other than float64 are exchanged, and added, in this one of float32, float16 and
  /// bfloat16: divided and rounded once on their way into the bucket, and converted back to their own type. float16
  /// parameters cannot be reduced in bfloat16, or vice versa. Limits of buckets count gradients' bytes.
  std::optional<DType> reduce_dtype{};
  std::shared_ptr<CommHook> comm_hook{};  ///< instead of the average
  BucketAllocator allocator{};            ///< default: the C++ library's; ProcessGroup::allocate on CUDA devices
  /// With gradient_as_bucket_view: gradients that are marked or placed in other memory move to bucket_view() when their
  /// bucket is full, all by one launch on a device. Then this is called with the bucket's parameters: their gradients
  /// are there from now on, for what comes later in the streams that have computed them, and the other memory may go.
  /// finalize does not write to that. Called by the thread that has filled the bucket, one call at a time; must not
  /// call the Reducer but for bucket_view().
  std::function<void(std::span<const std::size_t> parameters)> moved_in{};
  /// For parameters on a CUDA device: the stream in which gradients are computed, unless mark_ready names another one;
  /// default: the device's default stream. Buckets wait for what is in it when their last gradient is marked; finalize
  /// makes it wait for the averages, and does not block.
  std::optional<Stream> stream{};
  DdpLogOptions log{};  ///< sampling of the log
};

/// Times of the last finished step on this rank, in the terms of PyTorch's DDP logging data.
struct ReducerStats {
  std::uint64_t iteration = 0;               ///< finished steps, without those of no_sync
  std::chrono::nanoseconds backward{};       ///< prepare_for_backward to finalize called
  std::chrono::nanoseconds communication{};  ///< first bucket launched to last one finished; 0 on CUDA devices: unknown
  std::chrono::nanoseconds overlap{};        ///< the part of communication that lies within backward
};

/// The gradient averaging engine. Knows no autograd: the caller says which gradient is ready.
///
/// Per step: prepare_for_backward(); mark_ready(i) for every parameter, in any order and from any thread, as soon as
/// its gradient is final; finalize(). Afterwards every gradient holds the average over the group's ranks. Each gradient
/// is divided by the number of ranks while it is copied into its bucket (before the sum, so that half precision does
/// not overflow); buckets are exchanged in index order as they fill. Construction is collective. It verifies that all
/// ranks have the same parameters and options and throws Error(mismatch), on every rank, with the name of the first
/// parameter that differs. What only some ranks find wrong, such as gradients that share memory, every rank throws,
/// too: Error(invalid_argument) that names these ranks. All calls but mark_ready come from one thread at a time.
///
/// Gradients on a CUDA device are copied, divided and cast by work in a stream of the Reducer's own, which no call
/// waits for: neither mark_ready nor finalize blocks until the device is done, but for sparse gradients, which finalize
/// takes through the CPU's memory. Hooks without serves_cuda() are refused. A bucket in gradient_as_bucket_view is
/// divided by the backend instead. Errors on the device after finalize are reported by later calls.
class Reducer {
 public:
  /// Collective. The memory of @p parameters is the caller's and outlives this object. Throws as above.
  Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options = {});
  Reducer(Reducer&&) noexcept;             ///< between steps; @p other may only be destroyed or assigned to
  Reducer& operator=(Reducer&&) noexcept;  ///< likewise
  ~Reducer();

  /// Starts a step. Until ready_order() is set it, or Join::finish, may rebuild the buckets: ask for bucket_view()
  /// afterwards.
  /// @param unused parameters that get no gradient in this step; needs find_unused_parameters. Their gradients count as
  /// they are: an accumulated one is averaged, one without memory is zero.
  /// Throws invalid_argument when the last step was not finalized, or has failed: ranks may be in different steps then,
  /// so the Reducer is unusable.
  void prepare_for_backward(std::span<const std::size_t> unused = {});

  /// The gradient of parameter @p index (its position in the constructor's list) is final. Thread-safe.
  /// Throws invalid_argument when marked too often in a step or outside a step.
  void mark_ready(std::size_t index);
  /// The same for a gradient on a CUDA device that is final once what is in @p producer now is over, where this is
  /// another stream than ReducerOptions::stream. It lives until finalize, which makes it wait, too.
  void mark_ready(std::size_t index, const Stream& producer);
  /// The same for a gradient in other memory, which finalize writes to. The memory lives until then; after a step of
  /// no_sync until the next finalize.
  void mark_ready(std::size_t index, const TensorView& gradient);
  /// Both: other memory, and a stream that computes it.
  void mark_ready(std::size_t index, const TensorView& gradient, const Stream& producer);

  /// The same for a parameter with sparse_gradient, which finalize does not write to: see sparse_average().
  void mark_ready(std::size_t index, const SparseGradient& gradient);
  /// The same with the stream that computes it.
  void mark_ready(std::size_t index, const SparseGradient& gradient, const Stream& producer);

  /// Where the gradient of a parameter is until the next finalize, if it is not marked: an accumulated one counts.
  /// Without memory: zeros. Between steps; with gradient_as_bucket_view only if moved_in is given.
  void place_gradient(std::size_t index, const TensorView& gradient);
  /// The same for a parameter with sparse_gradient.
  void place_gradient(std::size_t index, const SparseGradient& gradient);

  /// Waits for all buckets and writes the averages into the gradients; those of parameters that no rank used stay as
  /// they are. Throws the error of an exchange that failed. Call it after every mark_ready has returned. When a rank
  /// has parameters that were not marked ready, every rank throws the same invalid_argument, which names rank and
  /// parameters; the next step may follow then. After any error, the gradients have no meaning.
  void finalize();

  /// Gives up the step that has begun, if there is one, since its backward pass has failed on this rank. If nothing of
  /// it has been exchanged, the next step takes its place, and the other ranks notice nothing. Else its exchange is
  /// brought to its end with zeros: every rank that finalizes it throws invalid_argument that names this one, and the
  /// next step may follow. Throws the error of an exchange that failed. @return whether the next step takes its place.
  bool give_up();

  /// While one of these lives, steps that are started exchange nothing, and gradients stay the rank's own: for
  /// accumulation. The next step without one averages what has accumulated. On all ranks for the same steps.
  class [[nodiscard]] NoSync {
   public:
    /// Takes over; @p other has no effect any more.
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
  /// The Reducer must outlive what this returns.
  NoSync no_sync();

  /// A parameter's place in its bucket, which holds the average after finalize, in reduce_dtype; with
  /// gradient_as_bucket_view, its gradient, in its own type. Valid until buckets are rebuilt. For a group of one rank
  /// without view and hook: the gradient itself.
  TensorView bucket_view(std::size_t index) const;

  /// After finalize, of a parameter with sparse_gradient: the average of all ranks, rows ascending and each once; none
  /// if no rank used it. Valid until the next finalize. On a CUDA device for what comes later in the streams that
  /// finalize makes wait.
  SparseGradient sparse_average(std::size_t index) const;

  /// Whether any rank has marked it in the last step, or in those of no_sync before. True unless unused parameters are
  /// looked for.
  bool used(std::size_t index) const;

  /// Brings rank 0's buffers, or @p root's, to all ranks, unless the step before was one of no_sync: before a forward
  /// pass or after it. Collective. As broadcast_coalesced.
  void broadcast_buffers(std::span<const TensorView> buffers, int root = 0);

  /// Goes on with another group: between steps, collective over the new one. Compares the parameters there, and
  /// rebuilds the buckets once more after the next step.
  void change_group(ProcessGroup group);

  /// For a Join: of ranks that have different numbers of steps. Stays where it is when the Reducer is moved, and ends
  /// with it. @param buffers what broadcast_buffers brings meanwhile, and the Join at its end.
  Joinable& joinable(std::vector<TensorView> buffers = {});

  /// Parameter indices of each bucket, in launch order.
  const std::vector<std::vector<std::size_t>>& buckets() const noexcept;
  /// Rank 0's order of gradients that the buckets follow; empty until they were rebuilt. The reversed list, if rank 0
  /// had no inputs then.
  const std::vector<std::size_t>& ready_order() const noexcept;
  /// The same for a later run of the same model, with how often this rank marks each parameter of a static graph.
  /// Throws Error(invalid_argument) while ready_order() is empty, or marks are still counted.
  RecordedOrder recorded_order() const;
  const ReducerStats& stats() const noexcept;  ///< of the last finished step; valid as long as this object

  /// A forward pass begins: for the log.
  void start_forward();
  DdpLog log() const;  ///< the data so far; see DdpLog
  /// From the next step on notes the times of each bucket in so many steps; forgets an earlier trace. Costs some clock
  /// readings for each bucket, and nothing without. Throws invalid_argument within a step.
  void trace(std::size_t steps);
  /// What was noted, for chrome://tracing and Perfetto: when each bucket's gradients were computed, when it was ready,
  /// launched and done; the last is not known of buckets on CUDA devices. Files of several ranks can be joined: their
  /// times count from the epoch.
  std::string trace_json() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
