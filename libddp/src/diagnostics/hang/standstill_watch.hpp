// Tells when none of this node's ranks gets on any more, and when one does again. Looks now and then, on a thread of
// its own, as files in /proc may block.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace ddp::diagnostics {

/// Not thread-safe. Destruction leaves a thread that hangs behind; it touches nothing of the object.
class StandstillWatch {
 public:
  /// @param ranks their processes. @param after how long they must stand still. Throws Error(system) when there can be
  /// no thread.
  StandstillWatch(std::vector<pid_t> ranks, std::chrono::milliseconds after);
  StandstillWatch(const StandstillWatch&) = delete;
  StandstillWatch& operator=(const StandstillWatch&) = delete;
  ~StandstillWatch();

  /// While ranks are stopped by Ctrl-Z, they do not stand still.
  void rest(bool resting);
  /// Readable when take() has something.
  int fd() const;
  /// Whether they stand still; nothing where that is known already.
  std::optional<bool> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::diagnostics
