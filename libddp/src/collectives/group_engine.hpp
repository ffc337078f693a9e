// Runs the operations of one group: a queue in issue order, a thread that executes it, and a watchdog that finds out
// why one does not finish and aborts the backend.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/backend.hpp"
#include "collectives/failure_detector.hpp"
#include "collectives/work_state.hpp"

namespace ddp::collectives {

/// Thread-safe, except for destruction.
class GroupEngine {
 public:
  /// @param backend connected. @param connect for groups of some of the members. @param timeout of operations that have
  /// no deadline of their own.
  GroupEngine(GroupMembers members, std::string backend_name, std::unique_ptr<Backend> backend, ConnectOptions connect,
              std::chrono::milliseconds timeout);
  GroupEngine(const GroupEngine&) = delete;
  GroupEngine& operator=(const GroupEngine&) = delete;
  /// Aborts operations that are still under way; their Works fail with ErrorCode::aborted.
  ~GroupEngine();

  static GroupEngine& of(ProcessGroup& group) { return *group.engine_; }

  /// Queues an operation whose arguments have been checked. Throws the group's verdict if it has failed.
  Work submit(Operation operation, std::optional<Deadline> deadline);

  const GroupMembers& members() const noexcept { return members_; }
  const std::string& backend_name() const noexcept { return backend_name_; }
  const ConnectOptions& connect_options() const noexcept { return connect_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  bool serves(DeviceType device) const noexcept { return backend_->serves(device); }
  /// For names of subgroups: equal on all members if they call it equally often.
  unsigned next_subgroup() noexcept { return ++subgroups_; }

 private:
  struct Task {
    Operation operation;
    Deadline deadline;
    Deadline investigate_at;  ///< early enough for a verdict by the deadline
    std::shared_ptr<WorkState> state;
    Deadline next_probe;  ///< when to look after those that it waits for
    std::chrono::milliseconds probe_interval;
    std::unique_ptr<Transfer> transfer;
  };
  using TaskPtr = std::shared_ptr<Task>;

  void run_tasks();
  void wait_for_transfer(const TaskPtr& task);
  void join_finished_waiters();
  void watch();
  void check(const TaskPtr& task);
  /// Whether a task's deadline is so near that it must be investigated.
  bool deadline_near() const;
  void execute(const TaskPtr& task);
  /// DDP_CHECK_COLLECTIVES: an error if the ranks called different things.
  std::optional<Error> compare_arguments(const Task& task);
  void finish(const TaskPtr& task, std::optional<Error> error);
  /// Why a task failed: the group's verdict, found now if there is none yet.
  Error explain(const Task& task, const Error& failure);

  const GroupMembers members_;
  const std::string backend_name_;
  const ConnectOptions connect_;
  const std::chrono::milliseconds timeout_;
  const bool compare_arguments_;  ///< DDP_CHECK_COLLECTIVES
  unsigned subgroups_ = 0;
  std::unique_ptr<Backend> backend_;
  OperationLog log_;

  std::mutex mutex_;  ///< guards what follows; never held while a peer or the backend is called
  std::condition_variable task_ready_;
  std::condition_variable transfers_done_;
  std::condition_variable watchdog_wakes_;
  std::uint64_t sequence_ = 0;
  Deadline watchdog_looks_{Deadline::Clock::time_point::max()};  ///< when the watchdog wakes by itself
  bool stopping_ = false;
  bool aborted_ = false;           ///< the backend, by the watchdog
  std::deque<TaskPtr> queue_;      ///< not started
  std::size_t transfers_ = 0;      ///< posted sends and receives that are not finished
  std::list<TaskPtr> unfinished_;  ///< all of them, in issue order

  /// A thread for each transfer under way: Gloo cannot wait for several at once without ending them all.
  struct Waiter {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::list<Waiter> waiters_;  ///< the worker's own

  FailureDetector detector_;  // after what its callback uses
  std::thread worker_;
  std::thread watchdog_;
};

}  // namespace ddp::collectives
