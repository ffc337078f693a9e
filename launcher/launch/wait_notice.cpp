#include "launch/wait_notice.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/stderr_line.hpp"

namespace ddp::launcher {

WaitNotice::WaitNotice(Text text, std::chrono::milliseconds silence, Say say)
    : thread_(base::start_thread([this, text = std::move(text), silence, say = std::move(say)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, silence, [this] { return over_; })) return;
        lock.unlock();
        const std::string line = fmt::format("ddprun: {}", text());
        say ? say(line) : void(base::write_stderr_line(line));
      })) {}

WaitNotice::~WaitNotice() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(duration).count();
  if (seconds < 120) return fmt::format("{} s", seconds);
  const auto rest = seconds % 60;
  return rest == 0 ? fmt::format("{} min", seconds / 60) : fmt::format("{} min {} s", seconds / 60, rest);
}

}  // namespace ddp::launcher
