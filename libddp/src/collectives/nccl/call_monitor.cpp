#include "collectives/nccl/call_monitor.hpp"

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "base/library_thread.hpp"
#include "base/log.hpp"

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

}  // namespace ddp::collectives::nccl
