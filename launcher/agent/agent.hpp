// One node's part of a job: announces the node, runs attempts as the coordinator orders, and reports what happens. It
// outlives its attempts and adopts the processes that they leave behind.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "agent/attempt_process.hpp"
#include "agent/input_feed.hpp"
#include "agent/job_layout.hpp"
#include "agent/node_metrics.hpp"
#include "agent/standby.hpp"
#include "agent/step_signals.hpp"
#include "base/process.hpp"
#include "control/connection.hpp"
#include "events/heartbeat.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

using AttemptStarter = std::function<AttemptProcess(const NodeJob&, const control::PrepareAttempt&)>;

struct AgentLimits {
  /// For an attempt process that has cleaned up, or closed its connection, to end.
  std::chrono::milliseconds attempt_end = std::chrono::seconds(3);
  /// For a coordinator to react to a signal, besides the time that ranks have: it may have to kill them and to deliver
  /// their output.
  std::chrono::milliseconds coordinator_patience = std::chrono::seconds(45);
  /// For processes to end after SIGKILL.
  std::chrono::milliseconds kill = std::chrono::seconds(10);
  /// The same, once the job ends.
  std::chrono::milliseconds final_kill = std::chrono::milliseconds(1'500);
  /// For an attempt process to clean up within the urgent drain time.
  std::chrono::milliseconds orphan_cleaning = std::chrono::seconds(20);
  /// For an attempt process to show life before its ranks run: to reach the store, and to execute programs that lie on
  /// a slow file system (agent/attempt.cpp).
  std::chrono::milliseconds start = std::chrono::minutes(5);
  /// The least of the same later, whatever DDP_PEER_TIMEOUT is.
  std::chrono::milliseconds attempt_silence = std::chrono::seconds(15);
  /// From the start of ranks to that of the interpreters for those of the next generation.
  std::chrono::milliseconds warm_delay = std::chrono::seconds(2);
};

/// Runs in the caller's event loop: after each turn of it, call time_passed(). The process must be a subreaper (see
/// orphans.hpp) and have no other threads.
class Agent {
 public:
  /// Sends @p hello. @p job and @p loop must outlive the object.
  Agent(const NodeJob& job, const control::Hello& hello, control::Connection coordinator, stream::EventLoop& loop,
        AttemptStarter start_attempt = start_attempt_process, AgentLimits limits = {},
        StandbyStarter start_standby = start_standby_process);
  Agent& operator=(Agent&&) = delete;
  ~Agent();

  /// A signal to this process: one for its own ranks, or one that ends the job.
  /// @param by_slurm slurmstepd sent it, and may have signalled the ranks as well
  void forward_signal(int signal, bool by_slurm);
  void ending_signal(int signal, bool by_slurm);
  /// Stops the ranks of this node, because this process will stop itself (Ctrl-Z).
  /// @param tell the coordinator, which is in another process, so that all nodes' ranks stop
  void suspend(bool tell);
  void resume(bool tell);
  /// SIGCHLD: adopted orphans may have ended.
  void child_ended();

  std::optional<Deadline> next_deadline() const;
  void time_passed();

  /// By order of the coordinator, or without it once the ranks are gone.
  bool finished() const { return finished_; }
  int exit_status() const { return exit_status_; }

 private:
  void handle(const control::Message& message);
  void begin(const control::PrepareAttempt& plan);
  void serve_metrics();
  void pass_on(const control::Message& message);
  void pass_settled_orders();
  void stop_ranks(bool stop);
  void note_rest(bool ranks_rest);
  void from_attempt(const control::Message& message);
  void watch_console(control::Connection connection);
  void attempt_lost(bool silent);
  /// @return whether the attempt process has ended; shows life meanwhile
  bool wait_for_attempt(std::chrono::milliseconds limit);
  void end_left_processes(std::chrono::milliseconds limit);
  std::optional<Deadline> answer_due() const;
  void beat();
  void to_coordinator(const control::Message& message) { coordinator_.send(message); }
  void to_attempt(const control::Message& message);
  void leave_coordinator(const std::string& why);
  void coordinator_lost(const std::string& why);
  void finish_as_orphan();
  control::EndAttempt orphaned_end() const;
  void drop_attempt();

  const NodeJob& job_;
  control::Hello hello_;
  stream::EventLoop& loop_;
  AttemptStarter start_attempt_;
  AgentLimits limits_;
  LoopConnection coordinator_;
  Standby standby_;
  base::ChildProcess attempt_process_;
  std::unique_ptr<LoopConnection> attempt_;  ///< to attempt_process_
  std::unique_ptr<LoopConnection> console_;  ///< its ranks' output, for the coordinator; closed: for its own streams
  int epoch_ = -1;
  bool cleaned_ = true;                       ///< of the attempt with that epoch
  int running_ = 0;                           ///< its ranks that have not ended
  bool started_ = false;                      ///< its ranks have been
  bool ending_ = false;                       ///< EndAttempt has been passed on
  bool ranks_told_ = false;                   ///< a signal to end has been passed on
  std::chrono::milliseconds leave_grace_{0};  ///< of the plan
  StepSignals step_signals_;
  std::optional<Heartbeat::Time> attempt_asked_;      ///< SIGKILL or EndAttempt has been passed on
  std::optional<Heartbeat::Time> coordinator_asked_;  ///< it has been told of a signal that ends the job
  bool coordinator_rests_ = false;                    ///< stopped by Ctrl-Z
  bool ranks_rest_ = false;                           ///< likewise
  Heartbeat::Time ranks_resumed_{};
  bool orphaned_ = false;
  int orphan_steps_ = 0;  ///< 0: SIGTERM sent, 1: SIGKILL
  std::optional<Deadline> orphan_limit_;
  bool finished_ = false;
  int exit_status_ = 1;
  std::unique_ptr<NodeMetrics> metrics_;  ///< from the first attempt on
  std::unique_ptr<InputFeed> input_;      ///< likewise, where rank 0 is here and gets the frontend's
  Heartbeat heartbeat_;
};

}  // namespace ddp::launcher
