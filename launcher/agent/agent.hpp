// One node's part of a job: tells the coordinator that the node is there, runs attempts as it is told, and passes on
// what happens. It outlives its attempts, and what they leave behind comes to it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "agent/attempt_process.hpp"
#include "agent/node_job.hpp"
#include "control/connection.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher {

/// Runs in an event loop that somebody else drives: after each turn of it, call time_passed(). The process must be a
/// subreaper (see orphans.hpp) and have no other threads.
class Agent {
 public:
  /// Sends @p hello. @p job and @p loop must outlive the object.
  Agent(const NodeJob& job, control::Hello hello, control::Connection coordinator, EventLoop& loop);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  /// A signal to this process: to be passed on to its own ranks, or one that ends the job.
  /// @param by_slurm slurmstepd is the sender, and may have signalled the ranks as well
  void forward_signal(int signal, bool by_slurm);
  void ending_signal(int signal, bool by_slurm);
  /// SIGCHLD: adopted orphans may have ended.
  void child_ended();

  std::optional<Deadline> next_deadline() const { return orphan_limit_; }
  void time_passed();

  /// The coordinator has said so, or it is gone and so are the ranks.
  bool finished() const { return finished_; }
  int exit_status() const { return exit_status_; }

 private:
  void read_coordinator();
  void read_attempt();
  void handle(const control::Message& message);
  void begin(const control::PrepareAttempt& plan);
  void attempt_ended();
  void to_coordinator(const control::Message& message);
  void to_attempt(const control::Message& message);
  void coordinator_lost();
  control::EndAttempt orphaned_end() const;
  void drop_attempt();

  const NodeJob& job_;
  EventLoop& loop_;
  control::Connection coordinator_;
  std::unique_ptr<AttemptProcess> attempt_;
  int attempt_number_ = -1;
  bool cleaned_ = true;      ///< of the attempt with that number
  int running_ = 0;          ///< its ranks that have not ended
  bool ending_ = false;      ///< EndAttempt has been passed on
  bool ranks_told_ = false;  ///< a signal to end has been passed on
  bool orphaned_ = false;
  int orphan_steps_ = 0;  ///< 0: SIGTERM sent, 1: SIGKILL
  std::optional<Deadline> orphan_limit_;
  bool finished_ = false;
  int exit_status_ = 1;
};

}  // namespace ddp::launcher
