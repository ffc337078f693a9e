// Durations as reports give them: in seconds, with fractions.
#pragma once

#include <chrono>

namespace ddp::launcher {

inline double seconds(std::chrono::milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace ddp::launcher
