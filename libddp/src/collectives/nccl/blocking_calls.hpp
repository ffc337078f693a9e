// Calls that may wait for a device, each on a thread of its own: who looks after groups would stop to watch their
// deadlines, behind the very operation that hangs.
#pragma once

#include <functional>

#include <ddp/deadline.hpp>

namespace ddp::collectives::nccl {

/// Of this process; not for forked children. Thread-safe.
class BlockingCalls {
 public:
  /// Runs @p call, which does not throw, with captures of other threads left alone. The end of the process waits for
  /// it, for some seconds. False, and logged: there can be no more threads.
  static bool start(std::function<void()> call) noexcept;
  /// Waits until none is under way; true if so by the deadline. Not from one.
  static bool settle(Deadline deadline) noexcept;
};

}  // namespace ddp::collectives::nccl
