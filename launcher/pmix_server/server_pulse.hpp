// Whether libpmix's thread, which serves all ranks of the node, still does so: ranks that wait for it would else be
// taken for those that hang.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include <ddp/deadline.hpp>

namespace ddp::launcher {

/// Asks the library for something that its thread does at once. Not thread-safe. For as long as the server lives.
class ServerPulse {
 public:
  ServerPulse() = default;
  ServerPulse(const ServerPulse&) = delete;
  ServerPulse& operator=(const ServerPulse&) = delete;

  /// Asks, unless the last question is still open. Does not wait.
  void ask();
  /// Since when the open question has been open; nothing: all are answered.
  std::optional<Deadline::Clock::time_point> silent_since() const;

 private:
  /// Shared with the library's thread, which may answer after this object is gone.
  std::shared_ptr<std::atomic<bool>> answered_ = std::make_shared<std::atomic<bool>>(true);
  Deadline::Clock::time_point asked_at_{};
};

}  // namespace ddp::launcher
