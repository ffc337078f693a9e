// A process group's inside: who is in it, and what carries its operations. The group's end is the end of this.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/group_driver.hpp"

namespace ddp::collectives {

/// How the ranks of a world connect.
struct ConnectOptions {
  std::string interface_address;              ///< of this rank, numeric
  std::chrono::milliseconds timeout{60'000};  ///< of a single connection
  std::optional<int> device{};                ///< of CUDA, where this rank was given one
  bool splits_off = false;                    ///< of a group whose CUDA backend is split off another's
  std::string why_no_cuda{};                  ///< "; NCCL is not used: ...", where nothing serves CUDA tensors
};

/// Thread-safe, except for destruction.
class GroupEngine {
 public:
  /// @param backends connected, one for each device type; the first serves the CPU and names the group's backend.
  /// @param connect for groups of some of the members. @param timeout of operations that have no deadline of their own.
  GroupEngine(GroupMembers members, std::vector<GroupBackend> backends, ConnectOptions connect,
              std::chrono::milliseconds timeout);
  GroupEngine(const GroupEngine&) = delete;
  GroupEngine& operator=(const GroupEngine&) = delete;
  /// Aborts operations that are still under way; their Works fail with ErrorCode::aborted.
  ~GroupEngine();

  static GroupEngine& of(ProcessGroup& group) { return *group.engine_; }

  /// Starts operations as one; their arguments have been checked. Throws the group's verdict if it has failed.
  Work submit(Operation operation, CallOptions options) { return driver_->submit({&operation, 1}, std::move(options)); }
  Work submit(std::vector<Operation> operations, CallOptions options) {
    return driver_->submit(operations, std::move(options));
  }

  /// This rank cannot go on: ends the group, with @p error for all members, unless it has failed already.
  void end_group(const Error& error) noexcept { driver_->watch().end_group(error); }

  /// As ProcessGroup::abort.
  void abort(std::string_view reason) noexcept { driver_->abort(reason); }

  /// As ProcessGroup::allocate.
  std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline) { return driver_->allocate(bytes, deadline); }

  /// As GroupDriver::make_executor.
  std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline) {
    return driver_->make_executor(converts, deadline);
  }

  /// As GroupDriver::split.
  void split(Backend* child, int rank, Deadline deadline) { driver_->split(child, rank, deadline); }

  const GroupMembers& members() const noexcept { return driver_->members(); }
  const std::string& backend_name() const noexcept { return driver_->lanes().front().carrier.name; }
  /// Names of all backends, in the order of the constructor.
  std::vector<std::string> backend_names() const;
  const ConnectOptions& connect_options() const noexcept { return connect_; }
  std::chrono::milliseconds timeout() const noexcept { return driver_->timeout(); }
  /// Null if no backend serves it.
  const Lane* lane_of(DeviceType device) const noexcept { return driver_->lane_of(device); }
  /// Throws Error(unavailable) in a process forked from the one that made the group.
  void check_process(std::string_view attempted) const { driver_->fork_guard().check(attempted); }
  /// For names of subgroups: equal on all members if they call it equally often.
  unsigned next_subgroup() noexcept { return ++subgroups_; }

 private:
  const ConnectOptions connect_;
  unsigned subgroups_ = 0;
  const std::shared_ptr<GroupDriver> driver_;
};

}  // namespace ddp::collectives
