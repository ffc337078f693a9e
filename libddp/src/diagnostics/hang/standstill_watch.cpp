#include "diagnostics/hang/standstill_watch.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/wake_event.hpp"
#include "diagnostics/hang/rank_progress.hpp"

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
      base::log(base::LogLevel::warning, "watching whether the ranks get on: {}", error.what());
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

}  // namespace ddp::diagnostics
