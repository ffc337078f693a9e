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
// Which children a process has stands in a file of each of its threads, and PyTorch's ranks have a hundred: more than
// all the rest to read. Data loaders are started in the first seconds, or once an epoch.
constexpr std::chrono::seconds kLongestTreePause{60};
// Of processes without a flight recorder, all open files of all of them would be looked through each time. Programs
// that will have one have it soon.
constexpr std::chrono::seconds kLongestPause{30};
// A process may come to have a second recorder, with another copy of the library.
constexpr std::chrono::seconds kTrust{300};

}  // namespace

void RankProbe::find_processes() {
  if (!processes_.empty() && !tree_.expired()) return;
  tree_ = Deadline::after(tree_pause_);
  tree_pause_ = std::min(2 * tree_pause_, kLongestTreePause);
  processes_ = {{.pid = pid_, .start_ticks = 0}};
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    for (const pid_t child : read_children(proc_, processes_[i].pid)) {
      if (processes_.size() < kMostProcesses) processes_.push_back({.pid = child, .start_ticks = 0});
    }
  }
}

RankUse RankProbe::look() {
  RankUse use;
  find_processes();
  std::uint64_t ticks = 0;
  std::uint64_t pages = 0;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    const ProcStat stat = read_stat(proc_, process.pid);
    if (i == 0 && (stat.state == 'X' || stat.state == 'Z')) return use;
    if (i == 0) use.stopped = stat.state == 'T';
    if (process.start_ticks == 0) process.start_ticks = stat.start_ticks;
    if (stat.state == 'X' || stat.start_ticks != process.start_ticks) continue;
    ++use.processes;
    ticks += stat.ticks + stat.children_ticks;
    pages += stat.resident_pages;
  }
  cpu_s_ = std::max(cpu_s_, static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  use.cpu_s = cpu_s_;
  use.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const bool lives = std::any_of(processes_.begin(), processes_.end(),
                                 [&](const Process& process) { return process.pid == flight_pid_; });
  if (lives && window_) use.flight = window_->view();
  if (!use.flight && window_) {
    window_.reset();
    search_ = Deadline{Deadline::Clock::time_point{}};
  }
  if (!search_.expired()) return use;
  search_ = Deadline::after(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  for (const Process& process : processes_) {
    auto window = flight::FlightWindow::open(proc_, process.pid);
    if (!window || !(use.flight = window->view())) continue;
    window_ = std::move(window);
    flight_pid_ = process.pid;
    search_ = Deadline::after(kTrust);
    break;
  }
  return use;
}

}  // namespace ddp::diagnostics
