// Says so when a thread does not come back from the driver or from NCCL. Operations of its group end then only if the
// abort of the communicator ends the call: one that hangs in the driver keeps the right to drive the group.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ddp/deadline.hpp>

namespace ddp::collectives::nccl {

/// What one thread at a time is doing.
class CallSlot {
 public:
  CallSlot(std::string group, std::string consequence)
      : group_(std::move(group)), consequence_(std::move(consequence)) {}

 private:
  friend class CallScope;
  friend class CallMonitor;
  const std::string group_;
  const std::string consequence_;
  std::atomic<const char*> what_{nullptr};
  std::atomic<std::int64_t> since_{0};  ///< ticks of the steady clock
  std::int64_t told_ = 0;               ///< the monitor's: of which call it has told
};

/// While it lives, the thread is in there. @p what must live for ever. Scopes of one slot do not overlap.
class CallScope {
 public:
  CallScope(CallSlot& slot, const char* what) noexcept : slot_(slot) {
    slot_.since_.store(Deadline::Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    slot_.what_.store(what, std::memory_order_release);
  }
  CallScope& operator=(CallScope&&) = delete;
  ~CallScope() { slot_.what_.store(nullptr, std::memory_order_release); }

 private:
  CallSlot& slot_;
};

/// One thread of the process looks at all slots that exist, as long as there are any.
class CallMonitor {
 public:
  /// A new slot, watched until nobody holds it. @p consequence of its hanging, for the message. @p limit: the time
  /// after which a call is told. Throws Error(system) when no more threads can be started.
  static std::shared_ptr<CallSlot> watch(std::string group, std::string consequence, std::chrono::milliseconds limit);

 private:
  class Watcher;
};

// ---- Calls that may wait for a device, each on a thread of its own: who looks after groups would stop to watch their
// deadlines, behind the very operation that hangs.

/// One per process; not for forked children. Thread-safe.
class BlockingCalls {
 public:
  /// Runs @p call, which does not throw, with captures of other threads left alone. The end of the process waits for
  /// it, for some seconds. False, and logged: no more threads can be started.
  static bool start(std::function<void()> call) noexcept;
  /// Waits until none is under way; true if so by the deadline. Not from one.
  static bool wait_for_all(Deadline deadline) noexcept;
};

}  // namespace ddp::collectives::nccl
