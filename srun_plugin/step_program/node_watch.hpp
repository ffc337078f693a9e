// What a node's witness shows of the node's tasks while they run: to Prometheus, and to the event log beside srun.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "diagnostics/metrics/metrics_endpoint.hpp"
#include "diagnostics/metrics/watched_ranks.hpp"
#include "step_program/node_report.hpp"

namespace ddp::srun_plugin {

struct WatchedNode {
  std::string step;  ///< "17.0"
  std::string node;
  std::string program;
  std::uint32_t world_size = 0;
  std::uint32_t num_nodes = 0;
  std::size_t local_tasks = 0;
  std::optional<std::uint16_t> metrics_port = std::nullopt;  ///< 0: any
  std::string metrics_address = "127.0.0.1";
  std::chrono::milliseconds report_interval{0};  ///< 0: nobody wants reports
};

/// Does nothing by itself, unless somebody asks or a report is due. Not thread-safe.
class NodeWatch {
 public:
  /// Listens where @p node says so. Throws Error(system), for example where the port is taken.
  explicit NodeWatch(WatchedNode node);

  void started(int rank, pid_t pid);
  /// @param status as wait(2) gives it.
  void ended(int rank, int status);

  /// Readable when serve() has something to do; -1: never.
  int fd() const { return endpoint_ ? endpoint_->fd() : -1; }
  void serve() { endpoint_->serve(); }
  /// Of a port that the kernel chose; else empty.
  std::string chosen_url() const;

  /// When report() should be called; nothing: not before another task begins.
  const std::optional<Deadline>& due() const { return due_; }
  NodeReport report();

  /// An answer to Prometheus.
  std::string text();

 private:
  WatchedNode node_;
  diagnostics::WatchedRanks ranks_;
  std::unique_ptr<diagnostics::MetricsEndpoint> endpoint_;
  std::size_t started_ = 0;
  double started_at_ = 0;  ///< s since 1970, of the first task
  std::uint32_t reports_ = 0;
  int answers_ = 0;
  std::optional<Deadline> due_;
};

}  // namespace ddp::srun_plugin
