// What a node's part of a job looks like from outside while it runs: for Prometheus, and for the event log's lines on
// progress.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "diagnostics/metrics/metrics_endpoint.hpp"
#include "diagnostics/metrics/watched_ranks.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// Of an agent, for all its attempts. Does nothing by itself, unless it answers Prometheus. Not thread-safe.
class NodeMetrics {
 public:
  struct Node {
    std::optional<std::uint16_t> port{};  ///< where Prometheus is answered; 0: any; nothing: nowhere
    std::string address = "127.0.0.1";
    std::string host{};
    std::string program{};
  };
  /// Of an attempt on this node.
  struct Ranks {
    std::string job_name{};
    std::vector<int> numbers{};  ///< global, by local rank
    int world_size = 0;
    std::size_t num_nodes = 0;
    int epoch = 0;
    int restarts = 0;
    int max_restarts = 0;
    int nodes_lost = 0;
    int nodes_waiting = 0;
    std::chrono::milliseconds interval{0};  ///< of progress_due(); 0: never
  };

  /// @p loop must outlive the object. Throws Error(system), for example where the port is taken.
  NodeMetrics(Node node, stream::EventLoop& loop);
  NodeMetrics& operator=(NodeMetrics&&) = delete;
  ~NodeMetrics();

  /// Where it answers; empty: nowhere.
  std::string url() const { return endpoint_ ? endpoint_->url() : std::string{}; }
  void begin(Ranks ranks);
  /// RanksStarted, RankEnded and NodesChange of that attempt.
  void note(const control::Message& message);
  /// What the coordinator is to know of the ranks' steps; nothing until the interval has passed.
  std::optional<control::Progress> progress_due();
  /// An answer to Prometheus.
  std::string text();

 private:
  bool wanted() const { return endpoint_ || of_.interval > std::chrono::milliseconds{0}; }

  Node node_;
  stream::EventLoop& loop_;
  std::unique_ptr<diagnostics::MetricsEndpoint> endpoint_;
  Ranks of_{.epoch = -1};
  double started_at_ = 0;  ///< s since 1970; 0: not yet
  diagnostics::WatchedRanks ranks_;
  std::optional<Deadline> progress_at_;
  int answers_ = 0;
};

}  // namespace ddp::launcher
