#include "agent/rank_start.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/imitated_launchers.hpp"
#include "base/process.hpp"
#include "placement/network_choice.hpp"

namespace ddp::launcher {
namespace {

std::string signal_list(const std::vector<int>& signals) {
  std::vector<std::string> names;
  for (const int signal : signals) names.push_back(base::signal_name(signal));
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

std::vector<topology::RankPlan> places_of_ranks(const NodeJob& job, const control::PrepareAttempt& plan) {
  const control::NodeLayout& own = plan.nodes.at(static_cast<std::size_t>(plan.node_rank));
  return job.placement->plan(
      plan.nodes.size() == 1 ? one_host_interface(job.environment)
                             : topology::SocketInterface{.name = own.socket_interface, .reason = own.socket_reason});
}

EnvironmentMap rank_environment(const RankStart& start, const EnvironmentMap& inheritable, const RankStore& store,
                                std::string error_file) {
  const LaunchOptions& options = start.job.options;
  const control::PrepareAttempt& plan = start.plan;
  const base::TorchrunEnvironment worker{.rank = start.rank(),
                                         .world_size = start.ranks.world_size,
                                         .local_rank = start.local_rank,
                                         .local_world_size = start.ranks.num_ranks,
                                         .node_rank = plan.node_rank,
                                         .num_nodes = static_cast<int>(plan.nodes.size()),
                                         .role = options.role,
                                         .role_rank = start.ranks.first_role_rank + start.local_rank,
                                         .role_world_size = start.ranks.role_world_size,
                                         .master_address = store.address,
                                         .master_port = static_cast<std::uint16_t>(store.port),
                                         .agent_serves_store = true,
                                         .restart_count = plan.restart_count,
                                         .max_restarts = plan.max_restarts,
                                         .run_id = plan.run_id,
                                         .error_file = std::move(error_file),
                                         .slurm_job = start.job.environment.raw("SLURM_JOB_ID").value_or(""),
                                         .ending_signals = signal_list(options.ending_signals)};
  EnvironmentMap environment =
      worker_environment(inheritable, worker, start.place.settings, options.virtual_local_rank);
  environment["DDP_GENERATION"] = std::to_string(plan.epoch);
  if (!start.job.memory.empty()) environment["DDP_NODE_CACHE"] = start.job.memory;
  if (!options.backend.empty()) environment["DDP_BACKEND"] = options.backend;
  if (!options.as.empty()) environment["DDP_AS"] = options.as;
  if (!options.trace.empty()) environment["DDP_TRACE_DIR"] = options.trace;
  base::ImitatedVariables imitated;
  if (options.imitates_openmpi) imitated = base::openmpi_variables(worker);
  if (options.imitates_horovod) {
    std::vector<int> ranks_of_nodes;
    for (const control::NodeLayout& node : plan.nodes) ranks_of_nodes.push_back(node.nproc);
    const base::Crossing crossing = base::crossing_of(ranks_of_nodes, plan.node_rank, start.local_rank);
    const base::ImitatedVariables more = base::horovod_variables(worker, crossing, start.job.host);
    imitated.insert(imitated.end(), more.begin(), more.end());
  }
  for (auto& [name, value] : imitated) environment[name] = std::move(value);
  return environment;
}

SpawnRequest rank_request(const RankStart& start, const EnvironmentMap& environment) {
  return {.rank = start.rank(),
          .path = start.job.command.path,
          .arguments = arguments_of(start.job.command, start.local_rank),
          .environment = environment_lines(environment),
          .descriptor_limit = start.job.descriptor_limit,
          .ignore_hangup = start.job.hangup_ignored,
          .binding = start.place.binding};
}

}  // namespace ddp::launcher
