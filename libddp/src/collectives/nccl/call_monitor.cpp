#include "collectives/nccl/call_monitor.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "cuda/stream.hpp"

namespace ddp::collectives::nccl {

/// Never destroyed: its thread may outlive main().
class CallMonitor::Watcher {
 public:
  void add(const std::shared_ptr<CallSlot>& slot, std::chrono::milliseconds limit) {
    const std::lock_guard lock(mutex_);
    watched_.push_back({slot, limit});
    if (running_) return;
    try {
      base::start_thread([this] { run(); }).detach();
    } catch (...) {
      watched_.pop_back();
      throw;
    }
    running_ = true;
  }

 private:
  struct Watched {
    std::weak_ptr<CallSlot> slot;
    std::chrono::milliseconds limit;
  };

  void run() {
    for (;;) {
      std::chrono::milliseconds pause{1000};
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(watched_, [&](const Watched& each) {
          const auto slot = each.slot.lock();
          if (slot) look_at(*slot, each.limit);
          return slot == nullptr;
        });
        for (const Watched& each : watched_) pause = std::min(pause, each.limit / 4);
        if (watched_.empty()) {
          running_ = false;
          return;
        }
      }
      std::this_thread::sleep_for(pause);
    }
  }

  static void look_at(CallSlot& slot, std::chrono::milliseconds limit) {
    const char* const what = slot.what_.load(std::memory_order_acquire);
    const std::int64_t since = slot.since_.load(std::memory_order_relaxed);
    if (what == nullptr || slot.told_ == since) return;
    const auto begun = Deadline::Clock::time_point{Deadline::Clock::duration{since}};
    const auto passed = Deadline::Clock::now() - begun;
    if (passed < limit) return;
    slot.told_ = since;
    base::log(base::LogLevel::error,
              "group '{}': a thread has been {} for {:.1f} s: NCCL or the GPU's driver does not return{}", slot.group_,
              what, std::chrono::duration<double>(passed).count(), slot.consequence_);
  }

  std::mutex mutex_;
  std::vector<Watched> watched_;
  bool running_ = false;
};

std::shared_ptr<CallSlot> CallMonitor::watch(std::string group, std::string consequence,
                                             std::chrono::milliseconds limit) {
  static auto* const watcher = new Watcher;
  auto slot = std::make_shared<CallSlot>(std::move(group), std::move(consequence));
  watcher->add(slot, limit);
  return slot;
}

namespace {

std::atomic<int> under_way{0};
// A driver that is unloaded while it is called crashes the process; one that hangs must not keep it.
constexpr std::chrono::seconds kLongestExit{3};

/// The driver has registered its own end before: this comes first.
void wait_at_exit() {
  static const pid_t process = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() == process) BlockingCalls::wait_for_all(Deadline::after(kLongestExit));
  });
  static_cast<void>(registered);
}

}  // namespace

bool BlockingCalls::start(std::function<void()> call) noexcept {
  ++under_way;
  try {
    wait_at_exit();
    std::thread thread = base::start_thread([call = std::move(call)]() mutable {
      try {
        const cuda::RelaxedCaptureScope relaxed;
        call();
      } catch (const std::exception& error) {
        base::log(base::LogLevel::error, "a call that may wait for a device: {}", error.what());
      }
      call = nullptr;  // and what it owns
      --under_way;
    });
    thread.detach();
    return true;
  } catch (const std::exception& error) {
    --under_way;
    base::log(base::LogLevel::error, "a call that may wait for a device cannot be made: {}", error.what());
    return false;
  }
}

bool BlockingCalls::wait_for_all(Deadline deadline) noexcept {
  while (under_way > 0) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace ddp::collectives::nccl
