// Collective operations among a set of ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/tensor_view.hpp>
#include <ddp/work.hpp>

namespace ddp {

/// How values are combined. Booleans: sum and max are OR, product and min are AND, avg is refused. Complex numbers:
/// only sum and avg.
/// avg divides the sum by the number of ranks. 8- and 16-bit floating point is divided in float32, before partial sums
/// are rounded, so that a float16 sum cannot overflow; integer quotients are truncated toward zero (as NCCL does), and
/// integer sums wrap.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };
std::string_view to_string(ReduceOp op) noexcept;  ///< the enumerator's name: "sum"

namespace collectives {
class GroupEngine;
}
class KeyValueStore;
class World;

/// Options of an operation. A Deadline alone converts.
struct CallOptions {
  CallOptions() = default;
  /// Ends by @p limit; keeps @p owner until the operation has ended.
  CallOptions(Deadline limit, std::shared_ptr<const void> owner = {})  // NOLINT(google-explicit-constructor)
      : deadline(limit), keep_alive(std::move(owner)) {}
  /// The same; without a limit, the group's timeout applies.
  CallOptions(std::optional<Deadline> limit,  // NOLINT(google-explicit-constructor)
              std::shared_ptr<const void> owner = {})
      : deadline(limit), keep_alive(std::move(owner)) {}

  std::optional<Deadline> deadline;        ///< default: the group's timeout, counted from the call
  std::shared_ptr<const void> keep_alive;  ///< owner of the tensors' memory, held until the operation is finished
  /// For tensors on a device: the stream that fills them. The operation waits for the work that is in it at the call,
  /// and runs in a stream of the group's own. Default: the device's default stream. Not cudaStreamPerThread.
  std::optional<Stream> stream;
  bool in_stream = false;  ///< run in `stream` itself: work enqueued there afterwards needs no Work::order
  /// For a sum of floating-point or complex numbers: factor for every rank's values before they are added, so that
  /// narrow types do not overflow. Equal on all ranks, of a magnitude between 1e-30 and 1e30. NCCL rounds it to the
  /// tensor's type; CPUs multiply the sum, in float32 or in the tensor's type if that is as wide.
  double prescale = 1;
};

/// An ordered set of ranks that communicate. Copyable handle: copies refer to the same group. Made by
/// make_process_group() and new_group().
///
/// Order: every rank must issue the collectives of one group in the same order; they start in that order, and one runs
/// at a time unless the backend can run several. Operations on tensors of different device types are not ordered with
/// each other. Consecutive sends and receives run concurrently (so that two ranks may each send before they receive),
/// but never before an earlier collective is finished, and a later collective waits for them. What a Batch starts
/// counts as one operation. Ranks in arguments (root, peer) are ranks *in this group*, in [0, size()). Tensors must be
/// on a device that the backend serves, and must stay untouched until the Work is done, and alive unless
/// CallOptions::keep_alive holds them. Every operation ends by its deadline, by default the group's timeout from the
/// call on. Errors: wrong arguments throw Error(invalid_argument) at once. Errors that concern other ranks are the
/// Work's: peer_lost names the ranks that died or do not answer, timeout the ranks that did not join the operation,
/// mismatch those whose arguments differ. After such an error the group is unusable on every rank that can still be
/// reached: each later operation throws the same error. Thread-safety: calls may come from any thread, but collectives
/// issued from several threads have no defined order. A forked child cannot use a group of its parent: calls throw
/// Error(unavailable).
class ProcessGroup {
 public:
  /// For make_process_group().
  explicit ProcessGroup(std::shared_ptr<collectives::GroupEngine> engine) : engine_(std::move(engine)) {}

  int rank() const noexcept;                              ///< this process's rank in the group
  int size() const noexcept;                              ///< number of ranks in the group
  const std::vector<int>& global_ranks() const noexcept;  ///< world rank of each member, by rank in the group
  const std::string& name() const noexcept;               ///< unique in the job, the same on all its ranks
  std::string backend() const;                            ///< for CPU tensors: "host"
  std::chrono::milliseconds timeout() const noexcept;     ///< for operations without a deadline of their own
  /// The CUDA device whose tensors the group takes: this rank's. Nothing if it takes none, or those of any device.
  std::optional<Device> cuda_device() const noexcept;

  /// In place: every rank receives the combination of all ranks' values.
  Work all_reduce(TensorView tensor, ReduceOp op = ReduceOp::sum, CallOptions options = {});
  /// In place: every rank receives root's values.
  Work broadcast(TensorView tensor, int root, CallOptions options = {});
  /// In place: root receives the combination; the other ranks' tensors hold undefined values afterwards.
  Work reduce(TensorView tensor, int root, ReduceOp op = ReduceOp::sum, CallOptions options = {});
  /// output has size() times the elements of input, in rank order.
  Work all_gather(TensorView input, TensorView output, CallOptions options = {});
  /// Rank i contributes counts[i] elements; output has their sum, in rank order. counts must be equal on all ranks.
  Work all_gather_v(TensorView input, TensorView output, std::span<const std::size_t> counts, CallOptions options = {});
  /// Like all_gather, but only root receives the output; the others may pass an empty view.
  Work gather(TensorView input, TensorView output, int root, CallOptions options = {});
  /// root's input has size() times the elements of output; part i goes to rank i. The others may pass an empty input.
  Work scatter(TensorView input, TensorView output, int root, CallOptions options = {});
  /// input has size() times the elements of output; rank i receives the combination of part i of all ranks.
  /// Parts are combined in rank order, so the result does not depend on timing.
  Work reduce_scatter(TensorView input, TensorView output, ReduceOp op = ReduceOp::sum, CallOptions options = {});
  /// Both have size() equal parts; part i of input becomes part rank() of rank i's output.
  Work all_to_all(TensorView input, TensorView output, CallOptions options = {});
  /// Finished once every rank has entered it.
  Work barrier(CallOptions options = {});
  /// Matches one recv of the same tag, element type and count at @p peer. Finished when the memory may be reused.
  Work send(TensorView tensor, int peer, std::uint32_t tag = 0, CallOptions options = {});
  /// Matches one send of the same tag, element type and count at @p peer. Finished when the data have arrived.
  Work recv(TensorView tensor, int peer, std::uint32_t tag = 0, CallOptions options = {});

  /// Memory on this rank's CUDA device, zeroed and aligned to 256 bytes, that NCCL has allocated and registered
  /// (DDP_NCCL_REGISTER): for buckets, as in ReducerOptions::allocator. Collective if it becomes a window, and if NCCL
  /// has not connected yet (DDP_NCCL_CONNECT=lazy). A library thread frees it after its last owner is gone; it may
  /// outlive the group. Throws Error: unavailable without NCCL, timeout, and what ended the group.
  std::shared_ptr<void> allocate(std::size_t bytes, std::optional<Deadline> deadline = {});

  /// Ends the group on all its ranks that can be reached: operations under way and later ones fail with @p error, whose
  /// ranks are world ranks, even if other ranks do not answer. If the group has failed already, or ranks agree on an
  /// earlier error at the same time, they fail with that error on all ranks. From any thread, also while others wait
  /// for operations. Returns when this rank's operations have ended, after some seconds at most. Does nothing in a
  /// forked process.
  void abort(const Error& error) noexcept;
  /// The same with Error(aborted) that names this rank and @p reason.
  void abort(std::string_view reason = {}) noexcept;

  /// A group of the given members of this group, in the given order. Collective over this group, with the same list on
  /// all ranks; non-members get nothing.
  std::optional<ProcessGroup> new_group(std::span<const int> members);

 private:
  friend class collectives::GroupEngine;
  std::shared_ptr<collectives::GroupEngine> engine_;
};

/// The group of all ranks of @p world. The first call creates it and is collective; later calls return the same group.
/// The world keeps it until its own end; after that it lives as long as any handle to it.
/// @param backend "host" (also "cpu" or "gloo"), "nccl" (host for CPU tensors, NCCL for CUDA tensors), a plugin's name,
/// "cpu:NAME,cuda:NAME", or "auto": what DDP_BACKEND names, else host, and NCCL if every rank has it and its own
/// device. Throws unavailable if a backend is missing, conflict if two ranks would use one GPU,
/// invalid_argument if the group exists with another backend.
ProcessGroup make_process_group(World& world, std::string_view backend = "auto");

/// How make_process_group() makes a group over a store.
struct StoreGroupOptions {
  std::string name;                 ///< equal on all ranks, and used by this group only
  std::vector<int> global_ranks{};  ///< world rank of each rank, for messages; empty: the group is the job
  std::optional<std::chrono::milliseconds> timeout{};  ///< for the rendezvous; default: DDP_INIT_TIMEOUT
  std::string backend = "auto";                        ///< as above
  /// For NCCL: this rank's CUDA device; required if other ranks of the node are not in the group, as after a failure.
  /// Default: by its position among the group's ranks on its node.
  std::optional<int> device{};
};
/// A group of the ranks of @p store, which found each other by other means than a World: for other libraries' process
/// groups, and for the survivors of a failed group.
/// Collective over these ranks. The store must not have been used for another group; it is closed when this group is
/// made, and used by the calling thread alone. Throws like World::init and the above.
ProcessGroup make_process_group(std::unique_ptr<KeyValueStore> store, const StoreGroupOptions& options);

}  // namespace ddp
