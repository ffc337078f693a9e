#include "agent/job_layout.hpp"

#include <unistd.h>

#include <chrono>

#include <fmt/format.h>

namespace ddp::launcher {

NodeRanks ranks_of_node(const std::vector<control::NodeLayout>& nodes, int node_rank) {
  const control::NodeLayout& own = nodes.at(static_cast<std::size_t>(node_rank));
  NodeRanks ranks{.num_ranks = own.nproc};
  for (int index = 0; index < static_cast<int>(nodes.size()); ++index) {
    const control::NodeLayout& node = nodes[static_cast<std::size_t>(index)];
    ranks.world_size += node.nproc;
    if (index < node_rank) ranks.first_rank += node.nproc;
    if (node.role != own.role) continue;
    ranks.role_world_size += node.nproc;
    if (index < node_rank) ranks.first_role_rank += node.nproc;
  }
  return ranks;
}

NodeMetrics::Node metrics_of(const NodeJob& job) {
  const MetricsOptions& options = job.options.metrics;
  return {.port = job.options.dry_run ? std::nullopt : options.port,
          .address = options.address,
          .host = job.host,
          .program = job.options.command.empty() ? std::string{} : job.options.command.front()};
}

NodeMetrics::Ranks metrics_of(const control::PrepareAttempt& plan) {
  const bool named = plan.log_name != RendezvousOptions{}.run_id && !plan.log_name.empty();
  const NodeRanks own = ranks_of_node(plan.nodes, plan.node_rank);
  NodeMetrics::Ranks ranks{
      .job_name = named || plan.nodes.size() > 1 ? plan.log_name : fmt::format("pid-{}", ::getpid()),
      .world_size = own.world_size,
      .num_nodes = plan.nodes.size(),
      .epoch = plan.epoch,
      .restarts = plan.restart_count,
      .max_restarts = plan.max_restarts,
      .nodes_lost = plan.nodes_lost,
      .interval = std::chrono::milliseconds{plan.progress_ms}};
  for (int local = 0; local < own.num_ranks; ++local) ranks.numbers.push_back(own.first_rank + local);
  return ranks;
}

}  // namespace ddp::launcher
