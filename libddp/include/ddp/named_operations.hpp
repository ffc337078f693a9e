// Collective operations that match by name, in any order and from any thread, as Horovod's do.
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

/// What an operation by name does.
enum class NamedKind : std::uint8_t { all_reduce, all_gather, broadcast, all_to_all, reduce_scatter, barrier };
/// "all_reduce"
std::string_view to_string(NamedKind kind) noexcept;

/// What a rank submits. Ranks' calls of one set, kind and name belong together, and must fit together: the number of
/// tensors, their types, shapes (of all_gather and all_to_all all but the first dimension), op, factors, root, device.
struct NamedCall {
  NamedKind kind = NamedKind::barrier;  ///< of the operation
  std::string name{};                   ///< any bytes, at most 4,096
  int set = 0;                          ///< 0: all ranks; others by add_set()
  /// On the CPU; untouched until the operation has finished. Several run all together or not at all.
  /// all_reduce and broadcast: in place. all_gather and reduce_scatter: cut by the first dimension, which
  /// reduce_scatter gives to ranks in equal parts, the first ones one row more. all_to_all: splits[i] rows go to rank i
  /// of the set.
  std::vector<TensorView> tensors{};
  ReduceOp op = ReduceOp::sum;               ///< of all_reduce and reduce_scatter
  int root = 0;                              ///< of broadcast: a rank of the world
  std::vector<std::int64_t> splits{};        ///< of all_to_all: rows for each rank of the set
  DeviceType device = DeviceType::cpu;       ///< where the caller's tensors are, of which these may be copies
  double prescale = 1;                       ///< compared only: the caller has multiplied, or will
  double postscale = 1;                      ///< the same
  std::shared_ptr<const void> keep_alive{};  ///< held until it has finished: an owner of the tensors' memory
};

/// What all_gather, all_to_all and reduce_scatter have made of one tensor.
struct NamedResult {
  std::shared_ptr<std::byte> memory{};  ///< row-major; its rows have the shape of the input's
  std::size_t bytes = 0;                ///< of memory
  std::vector<std::int64_t> rows{};     ///< that came from each rank of the set; of reduce_scatter: this rank's alone
};

/// How operations have been arranged, counted from the start.
struct NamedCounts {
  std::uint64_t negotiated = 0;  ///< operations that ranks have agreed on by messages
  std::uint64_t learned = 0;     ///< that were taken in the learned order, without
  std::uint64_t fused = 0;       ///< that went in one exchange with others
  std::uint64_t messages = 0;    ///< that this rank has sent to agree
  std::uint64_t wake_ups = 0;    ///< of the thread that reads others' messages
};

class NamedOperations;

/// A submitted operation. Copyable handle; copies are the same operation. Thread-safe.
class NamedHandle {
 public:
  /// Whether it has finished, successfully or not. Never blocks.
  bool done() const;
  /// Returns whether it has finished by @p deadline. Moves the operation on meanwhile. Throws nothing of its own.
  bool wait(Deadline deadline) const;
  /// Why a finished operation has failed; nothing if it has not.
  std::optional<Error> error() const;
  /// What a finished all_gather, all_to_all or reduce_scatter has made, for each tensor.
  const std::vector<NamedResult>& results() const;
  /// The rank that joined last, of a finished join().
  int last_joined() const;

 private:
  friend class NamedOperations;
  struct State;
  explicit NamedHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// How a job's operations by name run.
struct NamedOptions {
  /// Bytes of all_reduces, ready together, alike and small, that go in one exchange; 0: each by itself.
  std::size_t fusion_bytes = std::size_t{128} << 20U;
  /// After so long one report names the ranks that operations wait for; 0: none.
  std::chrono::milliseconds stall_check{60'000};
  /// After so long they fail on all ranks; 0: after the group's timeout.
  std::chrono::milliseconds stall_shutdown{0};
};

/// Operations of a job by name. Each starts when all ranks of its set have submitted it. Rank 0 collects what ranks
/// announce and says what is ready, so that all exchange in one order; what differs is an Error(mismatch) of the
/// operation on all ranks of the set, which names the tensor, the ranks and both sides, and later operations work.
/// Once ranks have repeated the same operations, they follow the order that they have learned: before each exchange
/// they exchange how far each is ready by a small all_gather, and negotiate again when one leaves the order.
/// While nothing is under way nothing polls. The loss of a rank fails all operations on all ranks (peer_lost, which
/// names it). Thread-safe but for construction, add_set and remove_set.
class NamedOperations {
 public:
  /// Collective over @p parent, of which it makes groups; its own calls may run meanwhile.
  NamedOperations(const ProcessGroup& parent, const NamedOptions& options = {});
  NamedOperations(const NamedOperations&) = delete;
  NamedOperations& operator=(const NamedOperations&) = delete;
  /// As shutdown().
  ~NamedOperations();

  /// Throws Error(invalid_argument): a call that cannot be, by what this rank knows; a name that is under way here.
  NamedHandle submit(NamedCall call);
  /// Until all ranks have joined, this one takes part in others' all_reduces with zeros, in their broadcasts and
  /// all_gathers with nothing. broadcast from a joined root, all_to_all and reduce_scatter fail on the others.
  NamedHandle join();

  /// Collective over all ranks, with the same list. @param ranks of the world. Blocks. @return its number. Throws
  /// invalid_argument, mismatch.
  int add_set(const std::vector<int>& ranks, Deadline deadline);
  /// Likewise. Operations of the set that have not begun fail.
  void remove_set(int set, Deadline deadline);
  /// Ranks of a set, ascending. Throws invalid_argument for an unknown one.
  std::vector<int> ranks_of(int set) const;

  /// Ends all: what is under way fails with Error(aborted) on all ranks. Idempotent.
  void shutdown() noexcept;

  /// How this rank's operations have been arranged so far.
  NamedCounts counts() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp
