// What a node's part of a job looks like from outside while it runs: for Prometheus, and for the event log's lines on
// progress.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "agent/job_layout.hpp"
#include "agent/node_job.hpp"
#include "control/messages.hpp"
#include "diagnostics/metrics/metrics_endpoint.hpp"
#include "diagnostics/metrics/watched_ranks.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher {

/// Of an agent, for all its attempts. Does nothing by itself, unless it answers Prometheus. Not thread-safe.
class NodeMetrics {
 public:
  /// Answers where --metrics-port asks for it. Both references must outlive the object. Throws Error(system), for
  /// example where the port is taken.
  NodeMetrics(const NodeJob& job, EventLoop& loop);
  NodeMetrics(const NodeMetrics&) = delete;
  NodeMetrics& operator=(const NodeMetrics&) = delete;
  ~NodeMetrics();

  void begin(const control::PrepareAttempt& plan);
  /// RanksStarted and RankEnded of that attempt.
  void note(const control::Message& message);
  /// What the coordinator is to know of the ranks' steps; nothing until the plan's interval has passed.
  std::optional<control::Progress> progress_due();
  /// An answer to Prometheus.
  std::string text();

 private:
  bool wanted() const { return endpoint_ || interval_ > std::chrono::milliseconds{0}; }

  const NodeJob& job_;
  EventLoop& loop_;
  std::unique_ptr<diagnostics::MetricsEndpoint> endpoint_;
  std::string job_name_;
  NodeRanks layout_;
  std::size_t num_nodes_ = 0;
  int epoch_ = -1;
  int max_restarts_ = 0;
  int restarts_ = 0;
  int nodes_lost_ = 0;
  double started_at_ = 0;  ///< s since 1970; 0: not yet
  diagnostics::WatchedRanks ranks_;
  std::chrono::milliseconds interval_{0};
  std::optional<Deadline> progress_at_;
  int answers_ = 0;
};

}  // namespace ddp::launcher
