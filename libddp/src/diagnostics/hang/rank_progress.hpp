// Whether ranks get on, by what takes microseconds to read: cheap enough to be read all the time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ddp::diagnostics {

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
