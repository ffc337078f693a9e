// The process of the next attempt, which starts beside the one whose ranks run, and the interpreters that it has ready
// for its own (--warm-workers). They are its children, as the ranks of an attempt are.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "agent/attempt_process.hpp"
#include "agent/job_layout.hpp"
#include "control/connection.hpp"
#include "stream/event_loop.hpp"
#include "workers/warm_workers.hpp"

namespace ddp::launcher {

/// Why ranks that follow those of @p plan get no interpreters; empty: they get them, or none are wanted.
std::string no_warm_workers_because(const NodeJob& job, const control::PrepareAttempt& plan);

// In the agent.

using StandbyStarter = std::function<AttemptProcess(const NodeJob&, const control::PrepareAttempt& like, bool first)>;

/// Not thread-safe. Destruction ends the process.
class Standby {
 public:
  /// @param job, loop must outlive the object. @param delay from the start of ranks, which need the processors then
  /// @param ready the interpreters have imported their modules, or there will be none
  Standby(const NodeJob& job, stream::EventLoop& loop, StandbyStarter start, std::chrono::milliseconds delay,
          std::function<void(const control::WarmWorkersReady&)> ready)
      : job_(job), loop_(loop), start_(std::move(start)), delay_(delay), ready_(std::move(ready)) {}
  Standby& operator=(Standby&&) = delete;
  ~Standby() { drop(); }

  /// A process that is ready for @p plan and has got it; nothing: start one.
  std::optional<AttemptProcess> take(const control::PrepareAttempt& plan);
  /// The ranks of that plan run: after the delay, others will be made ready.
  void ranks_started();
  /// The node has no ranks, but may get some: likewise, for ranks that may differ. @param soon without the delay
  void spare(const control::Hello& own, bool soon);
  /// Whether spare() will make any ready.
  bool wanted_by_spare() const;
  /// They end: if the delay is not over, none will.
  void ranks_end() { due_.reset(); }
  std::optional<Deadline> next_deadline() const { return due_; }
  void time_passed();
  /// Ends the process, and the interpreters with it.
  void drop();

  pid_t pid() const { return process_ ? process_->process.pid() : -1; }  ///< -1: there is none

 private:
  bool wants(const control::PrepareAttempt& plan) const;

  const NodeJob& job_;
  stream::EventLoop& loop_;
  StandbyStarter start_;
  std::chrono::milliseconds delay_;
  std::function<void(const control::WarmWorkersReady&)> ready_;
  control::PrepareAttempt plan_;  ///< of the ranks that run, where interpreters are wanted
  bool wanted_ = false;
  bool first_ = true;
  std::optional<Deadline> due_;
  struct Process {
    std::unique_ptr<LoopConnection> connection;
    std::optional<control::Connection> console;
    base::ChildProcess process;  ///< last, as in AttemptProcess
  };
  std::optional<Process> process_;
};

// In the process.

/// What it has when the plan comes.
struct StandbyWork {
  control::PrepareAttempt plan;
  std::vector<control::Message> early;  ///< came behind the plan
  std::unique_ptr<WarmWorkers> warm;
};

/// Starts interpreters for ranks like those of @p like until a plan comes. Nothing: the agent has ended.
/// @param first of the job: modules that cannot be imported are reported
std::optional<StandbyWork> stand_by(const NodeJob& job, const control::PrepareAttempt& like, bool first,
                                    control::Connection& agent);

}  // namespace ddp::launcher
