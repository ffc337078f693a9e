// What to look at while a job's nodes do not come: at its start, and when the time is over.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/env_table.hpp"
#include "launch/launch_role.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// For a process that leads: where the others must come to, why they perhaps cannot, and what was perhaps meant. Empty
/// where nothing is known.
std::string waiting_hint(const LaunchOptions& options, const RoleDecision& role, const base::Environment& environment);

/// "localhost is each host's own name, ...", where the nodes of several hosts shall meet at it; else empty.
std::string own_endpoint_remark(const std::string& endpoint);

/// What to do where srun could start no agent in the job that the environment names, perhaps one that has ended.
std::string stale_job_hint(const base::Environment& environment);

// One line on standard error where a step of the start waits for longer than a user takes for granted.

/// For what blocks its thread. Waits in the event loop tell by themselves.
inline constexpr std::chrono::seconds kSilentWait{5};

/// While it lives: after @p silence says "ddprun: TEXT" once. @p text is called on another thread.
class WaitNotice {
 public:
  using Text = std::function<std::string()>;
  using Say = std::function<void(const std::string& line)>;

  /// Throws Error(system) when there can be no thread. @p say: for tests.
  explicit WaitNotice(Text text, std::chrono::milliseconds silence = kSilentWait, Say say = {});
  WaitNotice& operator=(WaitNotice&&) = delete;
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
