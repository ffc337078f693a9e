// Collective operations that are matched by name, in any order and from any thread, like Horovod's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/error.hpp>
#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// The kinds of operations by name.
enum class NamedKind : std::uint8_t { all_reduce, all_gather, broadcast, all_to_all, reduce_scatter, barrier };
/// The enumerator's name: "all_reduce".
std::string_view to_string(NamedKind kind) noexcept;

/// What a rank submits. Ranks' calls with the same set, kind and name belong together, and must be compatible: number
/// of tensors, types, shapes (of all_gather and all_to_all all but the first dimension), op, factors, root, device.
struct NamedCall {
  NamedKind kind = NamedKind::barrier;  ///< which operation
  std::string name{};                   ///< any bytes, at most 4,096
  /// Not 0: the operation has no name of its own. It is the number-th, from 1, of those of its kind and set that have
  /// this `name` in common.
  std::uint64_t number = 0;
  int set = 0;  ///< 0: all ranks; others from add_set()
  /// On the CPU; must not be touched until the operation has finished. Several run all together or not at all.
  /// all_reduce and broadcast: in place. all_gather and reduce_scatter: split by the first dimension, of which
  /// reduce_scatter gives ranks equal parts, the first ones one row more. all_to_all: splits[i] rows go to rank i of
  /// the set.
  std::vector<TensorView> tensors{};
  ReduceOp op = ReduceOp::sum;               ///< for all_reduce and reduce_scatter
  int root = 0;                              ///< for broadcast: a rank of the world
  std::vector<std::int64_t> splits{};        ///< for all_to_all: rows for each rank of the set
  DeviceType device = DeviceType::cpu;       ///< where the caller's tensors are, which `tensors` may be copies of
  double prescale = 1;                       ///< only compared: the caller multiplies
  double postscale = 1;                      ///< the same
  std::shared_ptr<const void> keep_alive{};  ///< owner of the tensors' memory, held until it has finished
};

/// What all_gather, all_to_all or reduce_scatter has made of one tensor.
struct NamedResult {
  std::shared_ptr<std::byte> memory{};  ///< row-major; its rows have the shape of the input's
  std::size_t bytes = 0;                ///< of memory
  std::vector<std::int64_t> rows{};     ///< from each rank of the set; for reduce_scatter: this rank's only
};

/// How operations have been scheduled, counted from the start.
struct NamedCounts {
  std::uint64_t negotiated = 0;  ///< operations that ranks agreed on by messages
  std::uint64_t learned = 0;     ///< operations in the learned order, without messages
  std::uint64_t fused = 0;       ///< operations that shared an exchange with others
  std::uint64_t messages = 0;    ///< messages that this rank has sent to agree
  std::uint64_t wake_ups = 0;    ///< of the thread that reads other ranks' messages
};

class NamedOperations;

/// A submitted operation. Copyable handle; copies refer to the same operation. Thread-safe.
class NamedHandle {
 public:
  /// Whether it has finished, successfully or not. Never blocks.
  bool done() const;
  /// Returns whether it has finished by @p deadline, and advances it meanwhile. Never throws the operation's error.
  bool wait(Deadline deadline) const;
  /// Why a finished operation failed; nothing if it succeeded.
  std::optional<Error> error() const;
  /// What a finished all_gather, all_to_all or reduce_scatter has made, per tensor. Valid as long as a handle.
  const std::vector<NamedResult>& results() const;
  /// The rank that joined last, after a finished join().
  int last_joined() const;

 private:
  friend class NamedOperations;
  struct State;
  explicit NamedHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// How a job's operations by name run.
struct NamedOptions {
  /// Limit of an exchange that small, similar all_reduces share when ready together, in bytes; 0: none is shared.
  std::size_t fusion_bytes = std::size_t{128} << 20U;
  /// After this time one report names the ranks that operations wait for; 0: no report.
  std::chrono::milliseconds stall_check{60'000};
  /// After this time they fail on all ranks; 0: after the group's timeout.
  std::chrono::milliseconds stall_shutdown{0};
};

/// Operations of a job by name. Each starts once all ranks of its set have submitted it. Rank 0 collects what ranks
/// announce and decides what is ready, so that all exchange in one order. Arguments that differ are an Error(mismatch)
/// of the operation on all ranks of the set, which names the tensor, the ranks and both sides; later operations work.
/// Once ranks have repeated the same operations, they follow the order that they have learned: before each exchange a
/// small all_gather shows what each rank has ready, and they negotiate again if one leaves the order.
/// Nothing polls while no operation is under way. The loss of a rank fails all operations on all ranks (peer_lost,
/// which names it). Thread-safe except for construction, add_set and remove_set.
class NamedOperations {
 public:
  /// Collective over @p parent, from which it makes groups; other calls of @p parent may run meanwhile.
  NamedOperations(const ProcessGroup& parent, const NamedOptions& options = {});
  NamedOperations(const NamedOperations&) = delete;
  NamedOperations& operator=(const NamedOperations&) = delete;
  /// Calls shutdown().
  ~NamedOperations();

  /// Throws Error(invalid_argument) for a call that this rank knows to be wrong, and for a name that is under way here.
  NamedHandle submit(NamedCall call);
  /// Until all ranks have joined, this one contributes zeros to the others' all_reduces, and nothing to their
  /// broadcasts and all_gathers. A broadcast from a joined root, all_to_all and reduce_scatter fail on the others.
  NamedHandle join();

  /// Collective over all ranks, with the same list. @param ranks of the world. Blocks until @p deadline at most.
  /// @return the set's number. Throws invalid_argument, mismatch.
  int add_set(const std::vector<int>& ranks, Deadline deadline);
  /// Likewise. Operations of the set that have not begun fail.
  void remove_set(int set, Deadline deadline);
  /// Ranks of a set, ascending. Throws invalid_argument for an unknown set.
  std::vector<int> ranks_of(int set) const;

  /// Ends all operations: those under way fail with Error(aborted) on all ranks. Idempotent.
  void shutdown() noexcept;

  /// On rank 0: from now on @p file gets what all ranks do with their operations, as a Chrome trace with Horovod's
  /// names, once a second. After each write it is a JSON document. On other ranks without effect.
  /// @param mark_exchanges as events CYCLE_START. @param essential: if the file cannot be written, operations end on
  /// all ranks with that error. Throws Error(system).
  void start_timeline(const std::string& file, bool mark_exchanges = false, bool essential = false);
  /// On rank 0: has all that has finished on all ranks in the file.
  void stop_timeline();
  /// Whether this rank records what it does, for a timeline of rank 0.
  bool recording() const;
  /// Adds to the timeline an all_reduce that ran elsewhere, such as that of a bucket of gradients. Microseconds since
  /// the epoch by this rank's clock: when its data were @p ready, and it was @p started and @p done.
  void record(std::string name, std::int64_t ready, std::int64_t started, std::int64_t done);

  /// How this rank's operations have been scheduled so far.
  NamedCounts counts() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp
