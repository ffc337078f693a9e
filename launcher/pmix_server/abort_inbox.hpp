// Carries PMIx_Abort calls from the PMIx library's thread, which only posts, to ddprun's.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/wake_event.hpp"

namespace ddp::launcher {

/// One rank's call of PMIx_Abort.
struct AbortMessage {
  int rank;
  int status;
  std::string message;
};

/// Thread-safe.
class AbortInbox {
 public:
  /// Readable when there is something to take.
  int fd() const { return event_.fd(); }
  void post(AbortMessage message);
  std::vector<AbortMessage> take();

 private:
  base::WakeEvent event_;
  std::mutex mutex_;
  std::vector<AbortMessage> messages_;
};

}  // namespace ddp::launcher
