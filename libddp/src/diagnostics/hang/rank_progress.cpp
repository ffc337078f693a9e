#include "diagnostics/hang/rank_progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/stacks/proc_stack.hpp"
#include "flight/flight_window.hpp"

namespace ddp::diagnostics {
namespace {

// More than threads take that poll now and then (PyTorch's watchdogs), less than what computes gets beside 20 others.
constexpr double kBusyCores = 0.05;
constexpr double kBusyBytesPerSecond = 16384;
constexpr std::size_t kMostProcesses = 1024;

/// rchar and wchar: what went through read(2) and write(2), from whatever files. 0 where it may not be read.
std::uint64_t io_of(const std::string& proc, pid_t pid) {
  std::ifstream file{fmt::format("{}/{}/io", proc, pid)};
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;
  for (int line = 0; line < 2 && file >> name >> bytes; ++line) sum += bytes;
  return sum;
}

}  // namespace

RankProgress read_progress(const std::string& proc, pid_t pid) {
  RankProgress progress;
  const char state = read_stat(proc, pid).state;
  progress.alive = state != 'X' && state != 'Z';
  if (!progress.alive) return progress;
  const auto view = flight::view_flight(proc, below_shells(proc, pid));
  if (view && (view->phase == flight::FlightPhase::wiring_up || !view->groups.empty())) {
    progress.in_groups = true;
    // The end of an operation takes it from those that are not finished.
    progress.operations = 2 * view->recorded - std::min<std::uint64_t>(view->unfinished.size(), view->recorded);
    return progress;
  }
  std::vector<pid_t> processes{pid};
  for (std::size_t i = 0; i < processes.size() && processes.size() < kMostProcesses; ++i) {
    const std::vector<pid_t> below = read_children(proc, processes[i]);
    processes.insert(processes.end(), below.begin(), below.end());
  }
  for (const pid_t each : processes) {
    progress.ticks += read_stat(proc, each).ticks;
    progress.io_bytes += io_of(proc, each);
  }
  return progress;
}

bool has_progressed(const RankProgress& before, const RankProgress& after, double seconds) {
  if (before.alive != after.alive || before.in_groups != after.in_groups) return true;
  if (after.in_groups) return before.operations != after.operations;
  // A process below it has ended.
  if (after.ticks < before.ticks || after.io_bytes < before.io_bytes) return true;
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(after.ticks - before.ticks) >= kBusyCores * seconds * ticks_per_second ||
         static_cast<double>(after.io_bytes - before.io_bytes) >= kBusyBytesPerSecond * seconds;
}

}  // namespace ddp::diagnostics
