#include "topo/report_model.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/placement/node_planner.hpp"
#include "topology/placement/rank_resources.hpp"
#include "topology/placement/settings.hpp"
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

// What the ranks of a running job should have and do have, and which of its nodes are alike.

namespace {

using Indices = std::set<int>;

const std::vector<int>& usable_gpus(const RankReport& report) {
  return report.named_gpus ? *report.named_gpus : report.visible_gpus;
}

/// Ranks of one machine may each see different GPUs (srun --gpus-per-task): a copy with only the @p visible ones.
Topology with_visible(const Topology& topology, const Indices& visible) {
  return topology.with_visible_gpus([&](const Gpu& gpu) { return visible.contains(gpu.index); },
                                    "no rank of the node may use it");
}

Indices visible_in(const Topology& topology) {
  Indices visible;
  for (const Gpu& gpu : topology.gpus()) {
    if (gpu.visible) visible.insert(gpu.index);
  }
  return visible;
}

void check_gpus(const Topology& topology, const RankReport& report) {
  for (const auto& list : {report.visible_gpus, usable_gpus(report)}) {
    for (const int gpu : list) {
      if (gpu >= 0 && gpu < static_cast<int>(topology.gpus().size())) continue;
      throw Error{{.code = ErrorCode::mismatch,
                   .attempted = fmt::format("comparing the GPUs of rank {} with those of its node", report.rank),
                   .cause = fmt::format("it sees a GPU {}, but {} has {}", gpu, report.host, topology.gpus().size()),
                   .ranks = {report.rank},
                   .hint = "do all ranks of a host run in the same container?"}};
    }
  }
}

/// For PlacementRequest::gpus: local rank i gets the i-th one. Empty if all ranks see the same GPUs in no given order;
/// ranks with different GPUs use their first, as in plan_node().
std::optional<std::vector<int>> gpus_in_order(const std::vector<RankReport>& ranks) {
  const RankReport& first = ranks.front();
  const auto same_gpus = [&](const RankReport& report) { return usable_gpus(report) == usable_gpus(first); };
  const auto named = [](const RankReport& report) { return report.named_gpus.has_value(); };
  if (std::all_of(ranks.begin(), ranks.end(), same_gpus)) {
    if (std::none_of(ranks.begin(), ranks.end(), named)) return std::nullopt;
    return usable_gpus(first);
  }
  std::vector<int> firsts;
  for (const RankReport& report : ranks) {
    if (!usable_gpus(report).empty()) firsts.push_back(usable_gpus(report).front());
  }
  return firsts;
}

/// @param placed where the rank should be, inside the mask that it was given.
/// @param free where it should be if it could use all that the job has on this node.
ActualBinding judge(const RankReport& report, const Placement& placed, const Placement& free, const CpuSet& of_job,
                    BindPolicy policy) {
  ActualBinding actual{.given = report.given, .binding = report.binding, .state = BindingState::elsewhere};
  const CpuSet& mask = report.binding.cpus;
  const bool far = placed.gpu.has_value() && placed.numa_nodes != free.numa_nodes;
  if (mask == placed.cpus && (far || placed.num_cores < free.num_cores)) {
    actual.state = BindingState::narrower;
    actual.sentence = fmt::format("narrower mask from the launcher: {}", report.given.to_string());
  } else if (mask == placed.cpus) {
    actual.state = BindingState::as_placed;
    actual.sentence = policy == BindPolicy::none ? "not bound, as asked" : "bound as placed";
  } else if (mask.contains(of_job)) {
    actual.state = BindingState::not_bound;
    actual.sentence = "not bound";
  } else if (placed.cpus.contains(mask)) {
    actual.state = BindingState::narrower;
    actual.sentence = fmt::format("narrower mask: {}", mask.to_string());
  } else if (mask.contains(placed.cpus)) {
    actual.state = BindingState::wider;
    actual.sentence = fmt::format("wider mask: {}", mask.to_string());
  } else {
    actual.sentence = fmt::format("other mask: {}", mask.to_string());
  }
  return actual;
}

const topology::Setting* find_setting(const std::vector<topology::Setting>& settings, std::string_view name) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const auto& known) { return known.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

bool chooses_gpus(std::string_view name) {
  return name.ends_with("_VISIBLE_DEVICES") || name == "ZE_AFFINITY_MASK" || name == topology::kDeviceOrdinal;
}

/// @param sharing placements of the ranks that may use the same GPUs as this one: only these judge a list of GPUs,
/// since other ranks have their own lists.
std::vector<SettingRow> compare_settings(const Topology& topology, const std::vector<Placement>& placements,
                                         const std::vector<Placement>& sharing, const RankReport& report,
                                         topology::SettingsOptions options) {
  options.interface = report.interface;
  options.nccl_conf = report.nccl_conf;
  const base::Environment environment{report.environment};
  const auto recommended =
      derive_settings(topology, placements, report.local_rank, options, base::Environment{Variables{}});
  auto checked = derive_settings(topology, placements, report.local_rank, options, environment);
  const auto among_sharing = derive_settings(topology, sharing, report.local_rank, options, environment);
  std::vector<SettingRow> rows;
  for (topology::Setting& setting : checked) {
    if (chooses_gpus(setting.name)) {
      const auto* judged = find_setting(among_sharing, setting.name);
      setting.conflict = judged == nullptr ? "" : judged->conflict;
    }
    const auto* ideal = find_setting(recommended, setting.name);
    const topology::Setting& shown = ideal == nullptr ? setting : *ideal;
    const auto found = report.environment.find(setting.name);
    rows.push_back({.name = setting.name,
                    .value = shown.value,
                    .reason = shown.reason,
                    .by_user = shown.by_user,  // by a file; a running rank's environment does not show who set what
                    .conflict = setting.conflict,
                    .actual = found == report.environment.end() ? std::nullopt : std::optional{found->second}});
  }
  return rows;
}

NodeKind describe_node(const NodeReports& node, BindPolicy policy, topology::GpuVisibility gpus) {
  Indices visible;
  CpuSet of_job;
  for (const RankReport& report : node.ranks) {
    check_gpus(node.topology, report);
    visible.insert(report.visible_gpus.begin(), report.visible_gpus.end());
    of_job = of_job | report.given;
  }
  const bool as_seen = visible == visible_in(node.topology);
  NodeKind kind{.topology = as_seen ? node.topology : with_visible(node.topology, visible),
                .hosts = {node.ranks.front().host},
                .allowed = of_job & node.topology.cpus()};
  PlacementRequest request;
  request.num_ranks = static_cast<int>(node.ranks.size());
  request.policy = policy;
  request.gpus = gpus_in_order(node.ranks);
  request.allowed = {of_job};
  const std::vector<Placement> free = place(kind.topology, request);
  request.allowed.clear();
  for (const RankReport& report : node.ranks) request.allowed.push_back(report.given);
  const std::vector<Placement> placements = place(kind.topology, request);

  topology::SettingsOptions options;
  options.gpus = gpus;
  options.bound = policy != BindPolicy::none;
  std::vector<topology::RankResources> limited(node.ranks.size());
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    limited[i].processor_thousandths = node.ranks[i].processor_thousandths;
    limited[i].processors_group = node.ranks[i].processors_group;
  }
  const std::vector<double> shares = processor_shares(limited);
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    const RankReport& report = node.ranks[i];
    options.processors = shares[i];
    std::vector<Placement> sharing;
    for (std::size_t other = 0; other < node.ranks.size(); ++other) {
      if (usable_gpus(node.ranks[other]) == usable_gpus(report)) sharing.push_back(placements[other]);
    }
    const Indices seen{report.visible_gpus.begin(), report.visible_gpus.end()};
    // The numbers in *_VISIBLE_DEVICES count what this rank sees.
    const Topology own = seen == visible ? kind.topology : with_visible(kind.topology, seen);
    kind.rows.push_back({.ranks = {{.rank = report.rank, .host = report.host, .interface = report.interface}},
                         .local_rank = report.local_rank,
                         .placement = placements[i],
                         .settings = compare_settings(own, placements, sharing, report, options),
                         .actual = judge(report, placements[i], free[i], kind.allowed, policy)});
  }
  return kind;
}

bool same_placement(const Placement& a, const Placement& b) {
  return a.gpu == b.gpu && a.gpu_shared == b.gpu_shared && a.nics == b.nics && a.numa_nodes == b.numa_nodes &&
         a.cpus == b.cpus && a.num_cores == b.num_cores && a.cores_shared == b.cores_shared;
}

/// Compares without reasons: an interface's reason names a different host on every node.
bool same_setting(const SettingRow& a, const SettingRow& b) {
  return a.name == b.name && a.value == b.value && a.conflict == b.conflict && a.actual == b.actual;
}

bool alike(const NodeKind& a, const NodeKind& b) {
  const auto same_row = [](const RankRow& x, const RankRow& y) {
    return same_placement(x.placement, y.placement) && x.actual == y.actual &&
           std::equal(x.settings.begin(), x.settings.end(), y.settings.begin(), y.settings.end(), same_setting);
  };
  return a.allowed == b.allowed && std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(), same_row);
}

void fold(NodeKind& into, NodeKind from) {
  into.hosts.insert(into.hosts.end(), from.hosts.begin(), from.hosts.end());
  for (std::size_t i = 0; i < into.rows.size(); ++i) {
    auto& ranks = into.rows[i].ranks;
    ranks.insert(ranks.end(), from.rows[i].ranks.begin(), from.rows[i].ranks.end());
    std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  }
}

}  // namespace

Report describe_job(const std::vector<NodeReports>& nodes, JobDescription job, BindPolicy policy,
                    topology::GpuVisibility gpus) {
  Report report{.job = std::move(job), .policy = policy, .gpus = gpus};
  std::vector<std::string> shapes;
  for (const NodeReports& node : nodes) {
    NodeKind kind = describe_node(node, policy, gpus);
    const std::string shape = kind.topology.shape();
    std::size_t i = 0;
    while (i < shapes.size() && !(shapes[i] == shape && alike(report.kinds[i], kind))) ++i;
    if (i < shapes.size()) {
      fold(report.kinds[i], std::move(kind));
    } else {
      report.kinds.push_back(std::move(kind));
      shapes.push_back(shape);
    }
  }
  const auto first_rank = [](const NodeKind& kind) { return kind.rows.front().ranks.front().rank; };
  std::sort(report.kinds.begin(), report.kinds.end(),
            [&](const NodeKind& a, const NodeKind& b) { return first_rank(a) < first_rank(b); });
  return report;
}

}  // namespace ddp::tools
