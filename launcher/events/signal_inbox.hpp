// Signals to ddprun as readable events, so that one loop can wait for them together with everything else.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// One that has arrived.
struct ReceivedSignal {
  int number;
  pid_t sender;  ///< 0: the kernel, or a process of another process namespace
};

/// Blocks @p signals: those that arrive wait for a SignalInbox that is still to be made. Ignored SIGHUP as there.
void hold_signals(const std::vector<int>& signals);

/// Blocks SIGCHLD and @p signals in the calling thread and receives them through a descriptor; ignores SIGPIPE. Must be
/// made before any other thread starts, so that all threads inherit the mask. SIGHUP stays ignored where it already
/// was: nohup(1) asked for that. Lives until the process ends: the mask is not put back, because a signal that arrives
/// during the last steps must not interrupt them.
class SignalInbox {
 public:
  explicit SignalInbox(const std::vector<int>& signals);

  int fd() const { return fd_.get(); }
  bool hangup_ignored() const { return hangup_ignored_; }
  /// The signals that have arrived, in the order in which the kernel delivers them.
  std::vector<ReceivedSignal> take();

 private:
  bool hangup_ignored_;
  base::UniqueFd fd_;
};

/// Readable as long as one of @p signals, which must be blocked, has arrived and has not been taken.
base::UniqueFd untaken(const std::vector<int>& signals);

}  // namespace ddp::launcher
