#include "topo/report_model.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/placement/node_planner.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::tools {

std::string_view to_string(BindingState state) noexcept {
  switch (state) {
    case BindingState::as_placed: return "as_placed";
    case BindingState::not_bound: return "not_bound";
    case BindingState::narrower: return "narrower";
    case BindingState::wider: return "wider";
    case BindingState::elsewhere: break;
  }
  return "elsewhere";
}

std::vector<int> NodeKind::ranks() const {
  std::vector<int> all;
  for (const RankRow& row : rows) {
    for (const RankIdentity& identity : row.ranks) all.push_back(identity.rank);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> NodeKind::unused_gpus() const {
  std::set<int> used;
  for (const RankRow& row : rows) {
    if (row.placement.gpu) used.insert(*row.placement.gpu);
  }
  std::vector<int> unused;
  for (const Gpu& gpu : topology.gpus()) {
    if (gpu.visible && !used.contains(gpu.index)) unused.push_back(gpu.index);
  }
  return unused;
}

int default_num_ranks(const Topology& topology, const base::Environment& environment, const CpuSet& allowed) {
  const auto named = topology::gpus_named_by(topology, environment);
  const auto& gpus = topology.gpus();
  const auto num_gpus = named ? static_cast<std::ptrdiff_t>(named->size())
                              : std::count_if(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.visible; });
  if (num_gpus > 0) return static_cast<int>(num_gpus);
  const CpuSet& usable = allowed.empty() ? topology.allowed_cpus() : allowed;
  const auto& nodes = topology.numa_nodes();
  const auto num_nodes =
      std::count_if(nodes.begin(), nodes.end(), [&](const NumaNode& node) { return node.cpus.intersects(usable); });
  return std::max(1, static_cast<int>(num_nodes));
}

Report describe_machine(const Topology& topology, const MachineQuestion& question) {
  topology::RankResources each{.cpus = question.allowed.empty() ? topology.allowed_cpus() : question.allowed,
                               .devices = topology::device_variables(question.environment)};
  take_limits(each, question.limits);
  const topology::NodeRequest request{.bind = question.policy,
                                      .gpus = question.gpus,
                                      .ranks = {static_cast<std::size_t>(std::max(question.num_ranks, 0)), each},
                                      .environment = question.environment,
                                      .nccl_conf = question.nccl_conf};
  NodeKind kind{.topology = topology, .allowed = each.cpus & topology.cpus()};
  if (!question.host.empty()) kind.hosts = {question.host};
  for (topology::RankPlan& plan : topology::plan_node(topology, request)) {
    const int local_rank = plan.placement.local_rank;
    RankRow row{.ranks = {{.rank = local_rank, .host = question.host}},
                .local_rank = local_rank,
                .placement = std::move(plan.placement)};
    for (topology::Setting& setting : plan.settings) {
      row.settings.push_back({.name = std::move(setting.name),
                              .value = std::move(setting.value),
                              .reason = std::move(setting.reason),
                              .by_user = setting.by_user,
                              .conflict = std::move(setting.conflict)});
    }
    kind.rows.push_back(std::move(row));
  }
  Report report{.policy = question.policy, .gpus = question.gpus};
  report.kinds.push_back(std::move(kind));
  return report;
}

std::pair<const NodeKind*, const RankRow*> find_rank(const Report& report, int rank) {
  for (const NodeKind& kind : report.kinds) {
    for (const RankRow& row : kind.rows) {
      const auto is_it = [rank](const RankIdentity& identity) { return identity.rank == rank; };
      if (std::any_of(row.ranks.begin(), row.ranks.end(), is_it)) return {&kind, &row};
    }
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "looking for a rank in the report",
               .cause = fmt::format("there is no rank {}", rank)}};
}

}  // namespace ddp::tools
