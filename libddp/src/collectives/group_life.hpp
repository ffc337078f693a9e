// How a group lives and ends: by failure, by order, in peace, with a backend that does not let go of its operations, or
// with a call that does not come back.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "collectives/group_watch.hpp"

namespace ddp::collectives {

class ProgressThread;

/// Thread-safe, unless members say otherwise.
class Life {
 public:
  using Time = Deadline::Clock::time_point;

  /// @param members of @p group.
  Life(GroupEngine& group, GroupMembers& members, const OperationLog& log);
  Life& operator=(Life&&) = delete;
  ~Life();

  /// There is a verdict.
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  bool closing() const noexcept { return closing_.load(); }
  /// Nothing continues.
  bool over() const noexcept { return failed() || closing_.load(std::memory_order_relaxed); }
  /// Why the group has failed, once it has.
  std::optional<Error> verdict() const { return watch_.verdict(); }
  GroupWatch& watch() noexcept { return watch_; }

  /// There is a verdict: operations end with it.
  void fail() noexcept;
  /// As ProcessGroup::abort.
  void abort(const Error& error) noexcept;
  /// An operation was started that is not over: progress threads look at it.
  void used() noexcept;

  /// Makes the process's threads look after the group. Once. Throws Error(system) when there can be no more.
  void start();
  /// Ends all operations, waits for the group's threads, closes the backends. In a forked child: does nothing, and
  /// keeps everything for ever. Once.
  void close() noexcept;

  /// By the progress thread of all groups, again and again.
  void look(Time now);
  /// Its backend makes calls that may hang, of NCCL or a GPU's driver.
  bool has_own_thread() const noexcept { return own_progress_ != nullptr; }

 private:
  void abort_held_turn(Time now) noexcept;
  void end_progress() noexcept;
  bool end_operations() noexcept;
  void close_backends() noexcept;
  void leave() noexcept;

  GroupEngine& group_;
  GroupMembers& members_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> aborting_{false};  ///< beside a call that does not come back
  std::optional<Time> held_since_;     ///< of the thread that looks: since when it should have been aborted
  bool abandoned_ = false;             ///< the backends are kept for ever
  const std::shared_ptr<ProgressThread> own_progress_;  ///< null: that of all groups carries it on
  GroupWatch watch_;                                    // last: its threads use all of the above
};

}  // namespace ddp::collectives
