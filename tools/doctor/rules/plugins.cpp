// Rules on NCCL's plugins, and on settings of a network that is not here.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

/// Plugins that must be the same everywhere: those for profiling or logging may differ.
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
  bool of_libfabric;  ///< else of a plugin of NCCL
};
constexpr Foreign kForeign[] = {{"NCCL_FASTRAK_", false},
                                {"NCCL_GPUDIRECTTCPX_", false},
                                {"OFI_NCCL_", true},
                                {"FI_EFA_", true},
                                {"FI_CXI_", true}};

/// Whether anything that may read such variables is there. Google's plugins are called libnccl-net.so as any other.
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
                       fmt::format("{} is set, but {} is not there", set->first,
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
     .title = "a variable names a file or folder that is not there",
     .meaning = "NCCL and PyTorch go on without it: a topology is not used, a log or dump not written.",
     .fix = "correct or unset the variable, or make the folder on all nodes",
     .check = &check_files},
};

}  // namespace

std::span<const Rule> plugin_rules() { return kPluginRules; }

}  // namespace ddp::tools::doctor
