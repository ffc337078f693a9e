#include "diagnostics/metrics/rank_probe.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "diagnostics/hang/proc_file.hpp"

namespace ddp::diagnostics {
namespace {

// A rank that starts thousands of processes shall not hold up whoever looks.
constexpr std::size_t kMostProcesses = 256;
// Of processes without a flight recorder, all open files of all of them would be looked through each time. Programs
// that will have one have it soon.
constexpr std::chrono::seconds kLongestPause{30};
// A process may come to have a second recorder, with another copy of the library.
constexpr std::chrono::seconds kTrust{300};

}  // namespace

RankUse RankProbe::look() {
  RankUse use;
  std::uint64_t ticks = 0;
  std::uint64_t pages = 0;
  std::vector<pid_t> processes{pid_};
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const ProcStat stat = read_stat(proc_, processes[i]);
    if (i == 0 && (stat.state == 'X' || stat.state == 'Z')) return use;
    if (i == 0) use.stopped = stat.state == 'T';
    if (stat.state == 'X') continue;
    ++use.processes;
    ticks += stat.ticks + stat.children_ticks;
    pages += stat.resident_pages;
    if (stat.state == 'Z') continue;
    for (const pid_t child : read_children(proc_, processes[i])) {
      if (processes.size() < kMostProcesses) processes.push_back(child);
    }
  }
  cpu_s_ = std::max(cpu_s_, static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  use.cpu_s = cpu_s_;
  use.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const bool lives = std::find(processes.begin(), processes.end(), flight_pid_) != processes.end();
  if (lives && window_) use.flight = window_->view();
  if (!use.flight && window_) {
    window_.reset();
    search_ = Deadline{Deadline::Clock::time_point{}};
  }
  if (!search_.expired()) return use;
  search_ = Deadline::after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  for (const pid_t pid : processes) {
    auto window = flight::FlightWindow::open(proc_, pid);
    if (!window || !(use.flight = window->view())) continue;
    window_ = std::move(window);
    flight_pid_ = pid;
    search_ = Deadline::after(kTrust);
    break;
  }
  return use;
}

}  // namespace ddp::diagnostics
