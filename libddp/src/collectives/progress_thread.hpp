// The one thread of a process that carries on operations for which nobody waits, and watches the clock for all groups.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::collectives {

class GroupDriver;

/// Exists while there are groups. Sleeps deeply while none is used; while some are, it looks at them every 0.2 to 1 ms,
/// and drives those that have operations under way and that nobody else has driven since the last look. Thread-safe.
class ProgressThread {
 public:
  /// How often it was woken by others, and slept deeply.
  struct Counts {
    std::uint64_t wakes = 0;
    std::uint64_t looks = 0;
    std::uint64_t deep_sleeps = 0;
  };

  /// Of this process: a forked child has another one.
  static ProgressThread& instance();

  void add(std::shared_ptr<GroupDriver> group);
  /// After it returns, the thread does not refer to @p group any more, unless it is the caller.
  void remove(const GroupDriver& group);
  /// An operation was started that is not over. Wakes the thread if it sleeps deeply.
  void used() noexcept {
    if (deep_.load() && deep_.exchange(false)) wake();
  }
  /// A group has failed, and must be seen to.
  void hurry() noexcept;
  Counts counts() const noexcept;

 private:
  using Groups = std::vector<std::shared_ptr<GroupDriver>>;

  void run();
  /// Takes over changes; false when there are no groups left.
  bool renew(Groups& groups);
  void sleep(std::chrono::microseconds limit);
  bool sleep_deeply(const Groups& groups);
  void wake() noexcept;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable wakes_;
  std::condition_variable renewed_;
  Groups groups_;
  std::uint64_t version_ = 0;  ///< of groups_
  std::uint64_t seen_ = 0;     ///< the version that the thread knows
  bool hurried_ = false;
  bool running_ = false;
  std::thread thread_;

  std::atomic<bool> deep_{false};
  std::atomic<std::uint64_t> wake_count_{0};
  std::atomic<std::uint64_t> look_count_{0};
  std::atomic<std::uint64_t> deep_count_{0};
};

}  // namespace ddp::collectives
