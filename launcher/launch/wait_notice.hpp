// One line on standard error where a step of the start waits for longer than a user takes for granted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ddp::launcher {

/// For what blocks its thread. Waits in the event loop tell by themselves.
inline constexpr std::chrono::seconds kSilentWait{5};

/// While it lives: after @p silence says "ddprun: TEXT" once. @p text is called on another thread.
class WaitNotice {
 public:
  using Text = std::function<std::string()>;
  using Say = std::function<void(const std::string& line)>;

  /// Throws Error(system) when there can be no thread. @p say: for tests.
  explicit WaitNotice(Text text, std::chrono::milliseconds silence = kSilentWait, Say say = {});
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;
  ~WaitNotice();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

/// "8 min 20 s": for how long something may still take.
std::string duration_text(std::chrono::milliseconds duration);

}  // namespace ddp::launcher
