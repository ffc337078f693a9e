#include "topo/report_model.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

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
  PlacementRequest request;
  request.num_ranks = question.num_ranks;
  request.policy = question.policy;
  if (!question.allowed.empty()) request.allowed = {question.allowed};
  request.gpus = topology::gpus_named_by(topology, question.environment);
  const std::vector<Placement> placements = place(topology, request);

  topology::SettingsOptions options;
  options.gpus = question.gpus;
  options.bound = question.policy != BindPolicy::none;
  NodeKind kind{.topology = topology, .hosts = {}, .rows = {}, .allowed = topology.allowed_cpus()};
  if (!question.allowed.empty()) kind.allowed = question.allowed & topology.cpus();
  if (!question.host.empty()) kind.hosts = {question.host};
  for (const Placement& placement : placements) {
    RankRow row{.ranks = {{.rank = placement.local_rank, .host = question.host, .interface = {}}},
                .local_rank = placement.local_rank,
                .placement = placement,
                .settings = {},
                .actual = {}};
    for (auto& setting : derive_settings(topology, placements, placement.local_rank, options, question.environment)) {
      row.settings.push_back({.name = setting.name,
                              .value = setting.value,
                              .reason = setting.reason,
                              .by_user = setting.by_user,
                              .conflict = setting.conflict,
                              .actual = {}});
    }
    kind.rows.push_back(std::move(row));
  }
  Report report{.job = {}, .policy = question.policy, .gpus = question.gpus, .kinds = {}};
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
               .cause = fmt::format("there is no rank {}", rank),
               .native = {},
               .ranks = {},
               .hint = {}}};
}

}  // namespace ddp::tools
