// The threads that carry on operations for which no thread waits. One of the process does it for all groups, and
// watches the clock for them; but a call of NCCL or of a GPU's driver may hang, so each group that makes such calls has
// a thread of its own for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/group_engine.hpp"

namespace ddp::collectives {

/// Its thread exists while it has groups. Sleeps deeply while none is used; while some are, it looks at them every 0.2
/// to 1 ms, and drives those that have operations under way and that nobody else has driven since the last look.
/// Thread-safe.
class ProgressThread : public std::enable_shared_from_this<ProgressThread> {
 public:
  enum class Duty {
    all,  ///< watches all groups, and drives those that have no thread of their own
    one,  ///< drives the one group that it is of
  };
  /// How often it was woken by others, and slept deeply.
  struct Counts {
    std::uint64_t wakes = 0;
    std::uint64_t looks = 0;
    std::uint64_t deep_sleeps = 0;
  };

  /// The one of this process with Duty::all: a forked child has another one.
  static ProgressThread& instance();

  /// One with Duty::one is owned by shared pointers, of which its thread has one.
  explicit ProgressThread(Duty duty) : duty_(duty) {}
  ProgressThread& operator=(ProgressThread&&) = delete;
  /// A thread that hangs continues by itself.
  ~ProgressThread() {
    if (thread_.joinable()) thread_.detach();
  }

  void add(std::shared_ptr<GroupEngine> group);
  /// After it returns, the thread does not refer to @p group any more, unless it is the caller.
  void remove(const GroupEngine& group);
  /// An operation was started that is not over. Wakes the thread if it sleeps deeply.
  void used() noexcept {
    if (deep_.load() && deep_.exchange(false)) wake();
  }
  /// A group has failed: looks at all groups without delay.
  void look_now() noexcept;
  Counts counts() const noexcept;

 private:
  using Groups = std::vector<std::shared_ptr<GroupEngine>>;

  void run();
  GroupEngine::Activity carry_on(GroupEngine& group);
  /// Takes over changes; false when there are no groups left.
  bool renew(Groups& groups);
  void sleep(std::chrono::microseconds limit);
  bool sleep_deeply(const Groups& groups);
  void wake() noexcept;

  const Duty duty_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable wakes_;
  std::condition_variable renewed_;
  Groups groups_;
  std::uint64_t version_ = 0;  ///< of groups_
  std::uint64_t seen_ = 0;     ///< the version that the thread knows
  bool look_now_ = false;
  bool running_ = false;
  std::thread thread_;

  std::atomic<bool> deep_{false};
  std::atomic<std::uint64_t> wake_count_{0};
  std::atomic<std::uint64_t> look_count_{0};
  std::atomic<std::uint64_t> deep_count_{0};
};

}  // namespace ddp::collectives
