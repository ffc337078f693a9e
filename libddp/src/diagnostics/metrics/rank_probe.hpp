// What a rank uses and has done, as /proc and its flight recorder tell whoever asks: the rank itself does nothing for
// it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "flight/flight_window.hpp"

namespace ddp::diagnostics {

struct RankUse {
  int processes = 0;     ///< the rank and what is below it; 0: it is gone
  bool stopped = false;  ///< by a signal
  double cpu_s = 0;
  std::uint64_t resident_bytes = 0;
  std::optional<flight::FlightView> flight{};
};

/// Looks at one rank again and again. Reads nothing that can block beside a process that hangs in the kernel.
class RankProbe {
 public:
  /// @param pid what the launcher started: the rank, or a script with the rank below it. @param proc "/proc".
  explicit RankProbe(pid_t pid, std::string proc = "/proc") : pid_(pid), proc_(std::move(proc)) {}

  pid_t pid() const { return pid_; }
  /// Processes that it starts are seen within a minute, in its first seconds at once.
  RankUse look();

 private:
  void find_processes();
  pid_t pid_;
  std::string proc_;
  double cpu_s_ = 0;  ///< the most so far: a process that ends between two files is missed in both
  pid_t flight_pid_ = 0;
  std::optional<flight::FlightWindow> window_;                 ///< of flight_pid_
  Deadline search_ = Deadline{Deadline::Clock::time_point{}};  ///< below pid_, before which there is none
  struct Process {
    pid_t pid = 0;
    std::uint64_t start_ticks = 0;  ///< tells it from a later one with its number; 0: not looked at yet
  };
  std::vector<Process> processes_;                           ///< pid_ and what is below it, as last looked for
  Deadline tree_ = Deadline{Deadline::Clock::time_point{}};  ///< until when they are good
  std::chrono::seconds tree_pause_{1};
  std::chrono::seconds pause_{1};  ///< to the next search that follows one in vain
};

}  // namespace ddp::diagnostics
