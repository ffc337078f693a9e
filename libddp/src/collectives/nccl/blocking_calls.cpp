#include "collectives/nccl/blocking_calls.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "cuda/capture_mode.hpp"

namespace ddp::collectives::nccl {
namespace {

std::atomic<int> under_way{0};
// A driver that is unloaded while it is called crashes the process; one that hangs must not keep it.
constexpr std::chrono::seconds kLongestExit{3};

/// The driver has registered its own end before: this comes first.
void wait_at_exit() {
  static const pid_t process = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() == process) BlockingCalls::settle(Deadline::after(kLongestExit));
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

bool BlockingCalls::settle(Deadline deadline) noexcept {
  while (under_way > 0) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace ddp::collectives::nccl
