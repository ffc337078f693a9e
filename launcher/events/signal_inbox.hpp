// Signals to ddprun as readable events, so that one loop waits for everything.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

struct ReceivedSignal {
  int number;
  pid_t sender;  ///< 0: the kernel, or a process of another process namespace
};

/// Blocks @p signals, so that they wait for a later SignalInbox; an ignored SIGHUP stays ignored.
void hold_signals(const std::vector<int>& signals);

/// Blocks SIGCHLD and @p signals in the calling thread and receives them through a descriptor; ignores SIGPIPE.
/// Construct it before any other thread starts, so that all threads inherit the mask. SIGHUP and SIGTSTP stay ignored
/// where they were (nohup(1)). The mask is not restored: a late signal must not interrupt the last steps.
class SignalInbox {
 public:
  explicit SignalInbox(const std::vector<int>& signals);

  int fd() const { return fd_.get(); }
  bool hangup_ignored() const { return hangup_ignored_; }
  /// The signals that have arrived, in the kernel's order.
  std::vector<ReceivedSignal> take();

 private:
  bool hangup_ignored_;
  base::UniqueFd fd_;
};

/// Readable while one of @p signals, which must be blocked, is pending.
base::UniqueFd untaken(const std::vector<int>& signals);

}  // namespace ddp::launcher
