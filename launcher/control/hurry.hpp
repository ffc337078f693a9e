// How much time there is to deliver what ranks have written, at the end of an attempt and of the job.
#pragma once

#include <chrono>

namespace ddp::launcher::control {

/// Why the end may not wait long for whoever reads standard output and error. A later one is more urgent.
enum class Hurry : int {
  none,    ///< the job ended by itself: a reader may be a pager
  ended,   ///< by a signal or --timeout, or the coordinator is lost: Slurm's KillWait is 30 s for everything
  at_once  ///< somebody who wants the end has said it twice
};

struct ConsolePatience {
  std::chrono::milliseconds without_progress;  ///< for a console that takes nothing
  std::chrono::milliseconds in_all;            ///< for one that takes little, per attempt
};

inline ConsolePatience console_patience(Hurry hurry) {
  using std::chrono::seconds, std::chrono::minutes;
  switch (hurry) {
    case Hurry::none: return {.without_progress = seconds(60), .in_all = minutes(10)};
    case Hurry::ended: return {.without_progress = seconds(5), .in_all = seconds(10)};
    case Hurry::at_once: break;
  }
  return {.without_progress = seconds(0), .in_all = seconds(0)};
}

}  // namespace ddp::launcher::control
