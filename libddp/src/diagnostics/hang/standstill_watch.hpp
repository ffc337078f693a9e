// Reports when none of this node's ranks gets on any more, and when one does again. Looks now and then, on a thread of
// its own, as files in /proc may block.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ddp::diagnostics {

/// Not thread-safe. Destruction leaves a thread that hangs behind; it touches nothing of the object.
class StandstillWatch {
 public:
  /// @param ranks their processes. @param after how long they must stand still. Throws Error(system) when there can be
  /// no thread.
  StandstillWatch(std::vector<pid_t> ranks, std::chrono::milliseconds after);
  StandstillWatch& operator=(StandstillWatch&&) = delete;
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

// Whether ranks get on, by what takes microseconds to read: cheap enough to be read all the time.

struct RankProgress {
  bool alive = false;
  bool in_groups = false;        ///< its flight recorder tells: it is in World::init, or has groups
  std::uint64_t operations = 0;  ///< called and ended ones; differs where it has got on
  std::uint64_t ticks = 0;       ///< processors' time of it and all processes below it, in clock ticks
  std::uint64_t io_bytes = 0;    ///< that they have read and written
};

/// @param proc "/proc".
RankProgress read_progress(const std::string& proc, pid_t pid);

/// Of a rank in groups: whether an operation was called or has ended. Of others: whether they have computed, or read
/// and written, more than a rank that only waits. @param seconds between the two.
bool has_progressed(const RankProgress& before, const RankProgress& after, double seconds);

}  // namespace ddp::diagnostics
