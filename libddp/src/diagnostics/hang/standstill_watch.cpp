#include "diagnostics/hang/standstill_watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <fstream>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/stacks/proc_stack.hpp"
#include "flight/flight_view.hpp"

namespace ddp::diagnostics {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLooks = 4;
// Processors' time is counted in hundredths of a second.
constexpr std::chrono::milliseconds kLeastPause{250};
constexpr std::chrono::milliseconds kMostPause{5'000};

}  // namespace

struct StandstillWatch::Shared {
  Shared(std::vector<pid_t> processes, std::chrono::milliseconds limit) : ranks(std::move(processes)), after(limit) {}
  void run();
  /// @return whether to go on
  bool pause(std::chrono::milliseconds time);

  const std::vector<pid_t> ranks;
  const std::chrono::milliseconds after;
  base::WakeEvent ready;
  std::mutex mutex;  ///< for what follows
  std::condition_variable changed;
  bool closed = false;
  bool resting = false;
  bool still = false;
  bool told = false;  ///< what take() has said
};

bool StandstillWatch::Shared::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex);
  return !changed.wait_for(lock, time, [this] { return closed; });
}

void StandstillWatch::Shared::run() {
  const auto time = std::clamp<std::chrono::milliseconds>(after / kLooks, kLeastPause, kMostPause);
  std::vector<RankProgress> known(ranks.size());
  Clock::time_point looked_at = Clock::now();
  Clock::time_point moved_at = looked_at;
  do {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - looked_at).count();
    bool moved = false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const RankProgress progress = read_progress("/proc", ranks[i]);
      moved = has_progressed(known[i], progress, seconds) || moved;
      known[i] = progress;
    }
    looked_at = now;
    const std::lock_guard lock(mutex);
    if (moved || resting) moved_at = now;
    still = now - moved_at >= after;
    if (still != told) ready.ring();
  } while (pause(time));
}

StandstillWatch::StandstillWatch(std::vector<pid_t> ranks, std::chrono::milliseconds after)
    : shared_(std::make_shared<Shared>(std::move(ranks), after)) {
  base::start_thread([shared = shared_] {
    try {
      shared->run();
    } catch (const std::exception& error) {
      base::log(base::LogLevel::warning, "watching the progress of the ranks: {}", error.what());
    }
  }).detach();
}

StandstillWatch::~StandstillWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closed = true;
  shared_->changed.notify_all();
}

void StandstillWatch::rest(bool resting) {
  const std::lock_guard lock(shared_->mutex);
  shared_->resting = resting;
}

int StandstillWatch::fd() const { return shared_->ready.fd(); }

std::optional<bool> StandstillWatch::take() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ready.clear();
  if (shared_->still == shared_->told) return std::nullopt;
  shared_->told = shared_->still;
  return shared_->told;
}

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
