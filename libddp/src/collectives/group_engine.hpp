// A process group's inside: who is in it, and what carries its operations from submission to their end.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/process_group.hpp>

#include "base/running_clock.hpp"
#include "collectives/group_lanes.hpp"
#include "collectives/group_life.hpp"
#include "collectives/group_submission.hpp"
#include "collectives/wait_ladder.hpp"

namespace ddp::collectives {

// ---- Threads and connections do not survive fork(2): what they belonged to must not be touched in the child.

/// Remembers in which process it was made. Costs a load to ask.
class ForkGuard {
 public:
  ForkGuard() noexcept;
  /// Whether this is a child of the process that made it.
  bool forked() const noexcept;
  /// Throws Error(unavailable) if it is.
  void check(std::string_view attempted) const;

 private:
  unsigned generation_;
};

/// How the ranks of a world connect.
struct ConnectOptions {
  std::string interface_address;              ///< of this rank, numeric
  std::chrono::milliseconds timeout{60'000};  ///< of a single connection
  std::optional<int> device{};                ///< of CUDA, where this rank was given one
  bool splits_off = false;                    ///< of a group whose CUDA backend is split off another's
  std::string why_no_cuda{};                  ///< "; NCCL is not used: ...", where nothing serves CUDA tensors
};

/// Thread-safe. Kept alive by the handles of its operations beyond its close.
class GroupEngine : public std::enable_shared_from_this<GroupEngine> {
 public:
  using Time = WorkState::Time;

  /// How a progress thread finds a group.
  enum class Activity {
    idle,      ///< nothing to do
    driven,    ///< by others, now or a moment ago
    polled,    ///< by nobody but the caller, in vain
    advanced,  ///< the same, and an operation got further
  };

  /// @param backends connected, one for each device type; the first serves the CPU and names the group's backend.
  /// @param connect for groups of some of the members. @param timeout of operations that have no deadline of their own.
  /// @return a group whose end is that of the last copy: operations that are still under way are aborted, their Works
  /// fail with ErrorCode::aborted.
  static std::shared_ptr<GroupEngine> make(GroupMembers members, std::vector<GroupBackend> backends,
                                           ConnectOptions connect, std::chrono::milliseconds timeout);
  GroupEngine& operator=(GroupEngine&&) = delete;
  ~GroupEngine();

  static GroupEngine& of(ProcessGroup& group) { return *group.engine_; }
  const GroupMembers& members() const noexcept { return members_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  const ConnectOptions& connect_options() const noexcept { return connect_; }
  const std::string& backend_name() const noexcept { return lanes_.all().front().name; }
  /// Names of all backends, in the order of make().
  std::vector<std::string> backend_names() const;
  /// Null if no backend serves it.
  const Lane* lane_of(DeviceType device) noexcept { return lanes_.of(device); }
  /// For names of subgroups: equal on all members if they call it equally often.
  unsigned next_subgroup() noexcept { return ++subgroups_; }
  bool forked() const noexcept { return fork_guard_.forked(); }
  /// Throws Error(unavailable) in a process forked from the one that made the group.
  void check_process(std::string_view attempted) const { fork_guard_.check(attempted); }

  /// Starts operations as one; their arguments have been checked. On an idle group they are posted and polled once
  /// before it returns. Throws the group's verdict if it has failed.
  Work submit(Operation operation, CallOptions options) { return submit({&operation, 1}, std::move(options)); }
  Work submit(std::vector<Operation> operations, CallOptions options) {
    return submit(std::span<Operation>(operations), std::move(options));
  }
  /// Returns when @p work is finished, or at @p limit. Drives the group if nobody else does.
  void wait(const WorkState& work, Time limit);
  /// As Work::order.
  void order(const WorkState& work, const Stream& stream);
  void recycle(WorkState& work) noexcept {
    if (!forked()) submission_.recycle(work);
  }

  /// As ProcessGroup::allocate.
  std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline);
  /// As Backend::make_executor, of the backend for CUDA tensors.
  std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline);
  /// As Backend::split, of the backend for CUDA tensors. Nothing where that does not split.
  void split(Backend* child, int rank, Deadline deadline);
  /// This rank cannot go on: ends the group, with @p error for all members, unless it has failed already.
  void end_group(const Error& error) noexcept { life_.watch().end_group(error); }
  /// As ProcessGroup::abort.
  void abort(const Error& error) noexcept {
    if (!forked()) life_.abort(error);
  }

  /// Drives the group if no other thread does. By the progress thread that carries it on.
  Activity progress() noexcept;
  /// The same without driving: idle or driven.
  Activity activity() const noexcept;

  // parts
  Submission& submission() noexcept { return submission_; }
  Lanes& lanes() noexcept { return lanes_; }
  Life& life() noexcept { return life_; }
  Waiters& waiters() noexcept { return waiters_; }
  OperationLog& log() noexcept { return log_; }
  FlightGroup& flight() noexcept { return *flight_; }

 private:
  GroupEngine(GroupMembers members, std::vector<GroupBackend> backends, ConnectOptions connect,
              std::chrono::milliseconds timeout);

  Work submit(std::span<Operation> operations, CallOptions options);
  void drive_until_posted(const WorkState& work, Time limit);
  WaitLadder ladder_for(const Lane& lane) noexcept;
  Lane& lane_for(std::span<const Operation> operations);
  Lane& device_lane(const std::string& attempted);
  template <class Call>
  auto call_with_pauses(const std::string& attempted, const Lane& lane, Deadline deadline, Call&& call);

  const base::RunningClockGuard running_clock_;
  GroupMembers members_;
  const ConnectOptions connect_;
  unsigned subgroups_ = 0;
  const std::chrono::milliseconds timeout_;
  /// The ranks have a processor each, and all are on this node: from another, a message is tens of microseconds away,
  /// and a poll is a system call that takes longer than sched_yield does where nobody else wants the processor.
  const bool may_spin_;
  YieldBudget yield_budget_;
  const ForkGuard fork_guard_;
  OperationLog log_;
  const std::shared_ptr<FlightGroup> flight_;
  Waiters waiters_;
  Lanes lanes_;
  Submission submission_;

  // of the progress thread
  std::uint32_t seen_drives_ = 0;
  bool carried_on_ = false;  ///< it drove the group when it looked last

  Life life_;  // last: its threads use all of the above
};

}  // namespace ddp::collectives
