// Rules on software that must be equal on all nodes, on NCCL's plugins, and on settings for an absent network.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/facts.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

void compare(const JobFacts& job, Findings& findings, const std::string& what, std::string RankFacts::*field) {
  std::map<std::string, std::vector<int>> ranks;
  for (const RankFacts& rank : job.ranks) {
    if (!(rank.*field).empty()) ranks[rank.*field].push_back(rank.rank);
  }
  if (ranks.size() < 2) return;
  for (const auto& [version, same] : ranks) findings.on_ranks(same, fmt::format("{} {}", what, version));
}

void check_libddp(const JobFacts& job, Findings& findings) { compare(job, findings, "libddp", &RankFacts::version); }

void check_pmix(const JobFacts& job, Findings& findings) { compare(job, findings, "PMIx", &RankFacts::pmix_version); }

struct BadPair {
  VersionRange slurm;
  VersionRange pmix;
  const char* effect;
  const char* fix;
  bool in_shared_memory;  ///< PMIX_MCA_gds=hash avoids it
};

constexpr Version kAll{};
constexpr Version kNone{.major = 1000, .minor = 0, .patch = 0};
// docs/reference/versions.md also lists these.
constexpr BadPair kBadPairs[] = {
    // openpmix#3645
    {.slurm = {.from = kAll, .below = {25, 11, 2}},
     .pmix = {.from = {5, 0, 8}, .below = kNone},
     .effect = "programs hang in PMIx_Init",
     .fix = "Slurm 25.11.2, or PMIx 5.0.7; or srun --mpi=pmi2, or --ddp with its store",
     .in_shared_memory = false},
    // openpmix#3019; Slurm's commit d23cad68df
    {.slurm = {.from = kAll, .below = {23, 2, 2}},
     .pmix = {.from = {5, 0, 0}, .below = {5, 0, 8}},
     .effect = "programs crash in the shared memory of PMIx",
     .fix = "Slurm 23.02.3, or export PMIX_MCA_gds=hash",
     .in_shared_memory = true},
    // Slurm's commit 1f93869092
    {.slurm = {.from = {23, 2, 2}, .below = {23, 2, 3}},
     .pmix = {.from = kAll, .below = {5, 0, 0}},
     .effect = "users may not open the shared memory of PMIx",
     .fix = "Slurm 23.02.3, or export PMIX_MCA_gds=hash",
     .in_shared_memory = true},
};

void check_pairs(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    const std::string& slurm = job.node_of(rank).facts.slurm_version;
    if (slurm.empty() || rank.pmix_version.empty()) continue;
    const bool without_shared_memory = rank.variable("PMIX_MCA_gds") == "hash";
    for (const BadPair& pair : kBadPairs) {
      if (!pair.slurm.contains(Version::of(slurm)) || !pair.pmix.contains(Version::of(rank.pmix_version))) continue;
      if (pair.in_shared_memory && without_shared_memory) continue;
      findings.on_rank(rank, fmt::format("Slurm {} with PMIx {}: {}", slurm, rank.pmix_version, pair.effect), pair.fix);
    }
  }
}

void check_drivers(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::vector<const NodeRecord*>> nodes;
  for (const NodeRecord& node : job.nodes) {
    if (!node.facts.nvidia_driver.empty()) nodes[node.facts.nvidia_driver].push_back(&node);
  }
  if (nodes.size() < 2) return;
  for (const auto& [version, same] : nodes) {
    for (const NodeRecord* node : same) findings.on_node(*node, fmt::format("NVIDIA's driver {}", version));
  }
}

void check_firmware(const JobFacts& job, Findings& findings) {
  std::map<std::string, std::map<std::string, std::vector<const NodeRecord*>>> nodes;  // by board, then by version
  for (const NodeRecord& node : job.nodes) {
    for (const RdmaPortFacts& port : node.facts.rdma) {
      if (!port.board.empty() && !port.firmware.empty()) nodes[port.board][port.firmware].push_back(&node);
    }
  }
  for (const auto& [board, by_version] : nodes) {
    if (by_version.size() < 2) continue;
    for (const auto& [version, same] : by_version) {
      for (const NodeRecord* node : same) findings.on_node(*node, fmt::format("{} with firmware {}", board, version));
    }
  }
}

constexpr Rule kVersionRules[] = {
    {.id = "libddp-versions",
     .severity = Severity::error,
     .title = "ranks run different versions of libddp",
     .meaning = "Their messages may not fit; programs fail while they wire up.",
     .fix = "install one version on all nodes, or load one module in the job script",
     .check = &check_libddp},
    {.id = "pmix-versions",
     .severity = Severity::warning,
     .title = "nodes run different versions of PMIx",
     .meaning = "Slurm's PMIx plugins of the nodes talk to each other; wire-up may fail or hang between versions.",
     .fix = "install one version of PMIx on all nodes, and restart slurmd",
     .check = &check_pmix},
    {.id = "slurm-pmix",
     .severity = Severity::error,
     .title = "this Slurm does not work with this PMIx",
     .meaning = "Known pairs of versions, by which programs hang or fail while they wire up.",
     .fix = "update one of them, or start with srun --mpi=pmi2",
     .check = &check_pairs},
    {.id = "drivers-differ",
     .severity = Severity::info,
     .title = "nodes have different drivers of NVIDIA",
     .meaning =
         "CUDA works between them, but features that NCCL agrees on by driver (cuMem, NVLS, dma-buf) may be there "
         "on some nodes only.",
     .fix = "update the nodes to one image",
     .check = &check_drivers},
    {.id = "firmware-differs",
     .severity = Severity::info,
     .title = "RDMA adapters of one kind have different firmware",
     .meaning = "Nothing is wrong by itself; it explains why adapters behave differently.",
     .fix = "mlxfwmanager --online -u, or the vendor's tool",
     .check = &check_firmware},
};

}  // namespace

std::span<const Rule> version_rules() { return kVersionRules; }

namespace {

/// Whether the plugin must be the same on all nodes: plugins for profiling or logging may differ.
bool decides(const PluginFacts& plugin) {
  return plugin.variable == "NCCL_NET_PLUGIN" || plugin.variable == "NCCL_TUNER_PLUGIN" ||
         plugin.variable == "NCCL_GIN_PLUGIN";
}

void check_differs(const JobFacts& job, Findings& findings) {
  std::set<std::string> kinds;
  for (const RankFacts& rank : job.ranks) {
    for (const PluginFacts& plugin : rank.plugins) {
      if (decides(plugin)) kinds.insert(plugin.variable);
    }
  }
  for (const std::string& kind : kinds) {
    std::map<std::string, std::pair<std::string, std::vector<int>>> by_digest;
    for (const RankFacts& rank : job.ranks) {
      std::string digests;
      std::string text;
      for (const PluginFacts& plugin : rank.plugins) {
        if (plugin.variable != kind) continue;
        digests += plugin.digest + ' ';
        text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", plugin.path, plugin.digest);
      }
      auto& same = by_digest[digests];
      same.first = text;
      same.second.push_back(rank.rank);
    }
    if (by_digest.size() < 2) continue;
    for (const auto& [digests, same] : by_digest) {
      findings.on_ranks(same.second, same.first.empty() ? fmt::format("no plugin for {}", kind)
                                                        : fmt::format("{}: {}", kind, same.first));
    }
  }
}

bool has_network(const NodeFacts& node, const std::string& network) {
  if (network == "libfabric") return !node.libfabric_device.empty();
  return std::any_of(node.rdma.begin(), node.rdma.end(),
                     [](const RdmaPortFacts& port) { return port.link_layer == "InfiniBand"; });
}

void check_stray(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const RankFacts& rank : job.ranks) {
    for (const PluginFacts& plugin : rank.plugins) {
      if (plugin.variable != "NCCL_NET_PLUGIN" || !plugin.by_default || plugin.network.empty()) continue;
      if (has_network(job.node_of(rank).facts, plugin.network)) continue;
      findings.on_rank(rank, fmt::format("{} is for {}, which this node does not have", plugin.path,
                                         plugin.network == "libfabric" ? "EFA or Slingshot" : plugin.network));
    }
  }
}

struct Foreign {
  std::string_view prefix;
  bool of_libfabric;  ///< otherwise of a plugin of NCCL
};
constexpr Foreign kForeign[] = {{"NCCL_FASTRAK_", false},
                                {"NCCL_GPUDIRECTTCPX_", false},
                                {"OFI_NCCL_", true},
                                {"FI_EFA_", true},
                                {"FI_CXI_", true}};

/// Whether a plugin is present that may read such variables. Google's are called libnccl-net.so like any other.
bool is_read(const RankFacts& rank, const Foreign& foreign) {
  if (foreign.of_libfabric && rank.libfabric) return true;
  return std::any_of(rank.plugins.begin(), rank.plugins.end(), [&](const PluginFacts& plugin) {
    return plugin.variable == "NCCL_NET_PLUGIN" && (!foreign.of_libfabric || plugin.network == "libfabric");
  });
}

void check_foreign(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    for (const Foreign& foreign : kForeign) {
      if (is_read(rank, foreign)) continue;
      const auto set = std::find_if(rank.environment.begin(), rank.environment.end(),
                                    [&](const auto& each) { return each.first.starts_with(foreign.prefix); });
      if (set == rank.environment.end()) continue;
      findings.on_rank(rank,
                       fmt::format("{} is set, but {} is missing", set->first,
                                   foreign.of_libfabric ? "libfabric" : "a plugin of NCCL that reads it"),
                       fmt::format("unset {}", set->first));
    }
  }
}

void check_files(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    for (const auto& [name, path] : rank.missing_files) {
      findings.on_rank(rank, path.starts_with('~') ? fmt::format("{}={}: only shells replace '~'", name, path)
                                                   : fmt::format("{}: there is no {}", name, path));
    }
  }
}

constexpr Rule kPluginRules[] = {
    {.id = "plugin-differs",
     .severity = Severity::error,
     .title = "ranks would load different plugins of NCCL",
     .meaning = "A plugin for networks or tuning decides how ranks talk: with another one, or none, on the other side "
                "connecting fails or hangs.",
     .fix = "one image or module on all nodes, or NCCL_NET_PLUGIN=none NCCL_TUNER_PLUGIN=none",
     .check = &check_differs},
    {.id = "plugin-stray",
     .severity = Severity::warning,
     .title = "NCCL would load a plugin for a network that is not here",
     .meaning = "NCCL takes any libnccl-net.so that the loader finds, without a setting: often one of HPC-X or of a "
                "cloud's image.",
     .fix = "NCCL_NET_PLUGIN=none, or take its folder out of LD_LIBRARY_PATH",
     .check = &check_stray},
    {.id = "env-foreign",
     .severity = Severity::warning,
     .title = "a variable for another network",
     .meaning = "Settings of a cloud were copied to a machine that does not have its network.",
     .fix = "unset it",
     .check = &check_foreign},
    {.id = "file-missing",
     .severity = Severity::warning,
     .title = "a variable names a missing file or folder",
     .meaning = "NCCL and PyTorch continue without it: a topology is not used, a log or dump not written.",
     .fix = "correct or unset the variable, or make the folder on all nodes",
     .check = &check_files},
};

}  // namespace

std::span<const Rule> plugin_rules() { return kPluginRules; }

}  // namespace ddp::tools::doctor
