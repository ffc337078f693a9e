#include "doctor/rule.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace ddp::tools::doctor {

std::string_view to_string(Severity severity) noexcept {
  switch (severity) {
    case Severity::info: return "info";
    case Severity::warning: return "warning";
    case Severity::error: return "error";
  }
  return "";
}

void Findings::on_ranks(std::vector<int> ranks, std::string evidence, std::string fix) {
  if (fix.empty()) fix = rule_->fix;
  const auto same = [&](const Finding& known) {
    return known.rule == rule_ && known.evidence == evidence && known.fix == fix;
  };
  auto found = std::find_if(found_.begin(), found_.end(), same);
  if (found == found_.end()) {
    found_.push_back({.rule = rule_, .evidence = std::move(evidence), .fix = std::move(fix)});
    found = std::prev(found_.end());
  }
  found->ranks.insert(found->ranks.end(), ranks.begin(), ranks.end());
  std::sort(found->ranks.begin(), found->ranks.end());
  found->ranks.erase(std::unique(found->ranks.begin(), found->ranks.end()), found->ranks.end());
  found->hosts.clear();
  for (const NodeRecord& node : job_.nodes) {
    const bool concerned = std::any_of(node.ranks.begin(), node.ranks.end(), [&](int rank) {
      return std::binary_search(found->ranks.begin(), found->ranks.end(), rank);
    });
    if (concerned) found->hosts.push_back(node.host);
  }
}

void Findings::on_rank(const RankFacts& rank, std::string evidence, std::string fix) {
  on_ranks({rank.rank}, std::move(evidence), std::move(fix));
}

void Findings::on_node(const NodeRecord& node, std::string evidence, std::string fix) {
  on_ranks(node.ranks, std::move(evidence), std::move(fix));
}

std::vector<Finding> Findings::take() {
  std::stable_sort(found_.begin(), found_.end(),
                   [](const Finding& a, const Finding& b) { return a.rule->severity > b.rule->severity; });
  return std::move(found_);
}

std::span<const Family> families() {
  static const std::array kFamilies{
      Family{.name = "Environment", .rules = environment_rules()},
      Family{.name = "NCCL", .rules = nccl_rules()},
      Family{.name = "Plugins", .rules = plugin_rules()},
      Family{.name = "Host", .rules = host_rules()},
      Family{.name = "Processors", .rules = processor_rules()},
      Family{.name = "Names and clocks", .rules = name_rules()},
      Family{.name = "Interfaces", .rules = interface_rules()},
      Family{.name = "Network", .rules = network_rules()},
      Family{.name = "RDMA", .rules = rdma_rules()},
      Family{.name = "GPUs", .rules = gpu_rules()},
      Family{.name = "GPUs and adapters", .rules = gpu_adapter_rules()},
      Family{.name = "NVLink fabric", .rules = gpu_fabric_rules()},
      Family{.name = "GPU health", .rules = gpu_health_rules()},
      Family{.name = "Versions", .rules = version_rules()},
  };
  return kFamilies;
}

std::vector<Finding> examine(const JobFacts& job, const std::function<bool(const Rule&)>& wanted) {
  Findings findings{job};
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) {
      if (!wanted(rule)) continue;
      findings.begin(rule);
      rule.check(job, findings);
    }
  }
  return findings.take();
}

}  // namespace ddp::tools::doctor
