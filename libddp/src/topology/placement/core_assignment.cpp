#include "topology/placement/core_assignment.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "topology/placement/balanced_assignment.hpp"

namespace ddp::topology {
namespace {

/// Finds the cores of processors.
class CoreTable {
 public:
  explicit CoreTable(const Topology& topology) {
    for (std::size_t core = 0; core < topology.cores().size(); ++core) {
      for (const int cpu : topology.cores()[core].cpus.to_vector()) {
        if (at(cpu) >= core_of_.size()) core_of_.resize(at(cpu) + 1, -1);
        core_of_[at(cpu)] = static_cast<int>(core);
      }
    }
  }

  /// The cores of @p cpus in ascending order, including partial ones.
  std::vector<int> cores(const CpuSet& cpus) const {
    std::vector<int> found;
    for (const int cpu : cpus.to_vector()) found.push_back(core_of_[at(cpu)]);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

 private:
  std::vector<int> core_of_;  ///< -1: not a processor of this machine
};

/// The processors of @p cores that are in @p allowed.
CpuSet allowed_part(const Topology& topology, const std::vector<int>& cores, const CpuSet& allowed) {
  std::vector<int> cpus;
  for (const int core : cores) {
    for (const int cpu : topology.cores()[at(core)].cpus.to_vector()) {
      if (allowed.contains(cpu)) cpus.push_back(cpu);
    }
  }
  return CpuSet{cpus};
}

/// Os-numbers of NUMA nodes, as numactl shows them: "0, 1".
std::string numbers(const Topology& topology, const std::vector<int>& numa_nodes) {
  std::vector<int> numbers;
  for (const int node : numa_nodes) numbers.push_back(topology.numa_nodes()[at(node)].os_index);
  return numbers.empty() ? "none" : fmt::format("{}", fmt::join(numbers, ", "));
}

std::vector<int> numa_nodes_of(const Topology& topology, const std::vector<int>& cores) {
  std::vector<int> nodes;
  for (const int core : cores) nodes.push_back(topology.cores()[at(core)].numa_node);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  std::erase(nodes, -1);
  return nodes;
}

std::string count_of(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

constexpr std::string_view kOwnMask = "the mask that this rank was started with";

/// The first step: lists of cores, before policies core and none apply.
class Division {
 public:
  Division(const Topology& topology, BindPolicy policy, const AllowedSets& allowed, const std::vector<GpuChoice>& gpus)
      : topology_(topology),
        kind_(policy == BindPolicy::socket ? PoolKind::package : PoolKind::numa_node),
        allowed_(allowed),
        gpus_(gpus),
        table_(topology),
        choices_(gpus.size()) {
    for (const GpuChoice& choice : gpus) {
      if (choice.gpu && near_.count(*choice.gpu) == 0) {
        near_.emplace(*choice.gpu, near_cores(topology, topology.gpus()[at(*choice.gpu)].locality));
      }
    }
  }

  std::vector<CoreChoice> run() && {
    if (!allowed_.groups_disjoint()) {
      divide_overlapping();
    } else if (allowed_.same()) {
      divide(allowed_.groups().front(), allowed_.all());
    } else {
      for (const std::vector<int>& group : allowed_.groups()) {
        if (group.size() == 1) {
          keep_own(group.front(), "no other rank has a part of it");
        } else {
          divide(group, allowed_.of(group.front()));
        }
      }
    }
    return std::move(choices_);
  }

 private:
  void keep_own(int rank, std::string_view why) {
    CoreChoice& choice = choices_[at(rank)];
    choice.cores = table_.cores(allowed_.of(rank));
    choice.sharers.clear();
    choice.numa_node.reason = fmt::format("of {}", kOwnMask);
    choice.decision.reason = fmt::format("{}: {}", kOwnMask, why);
  }

  void divide(const std::vector<int>& ranks, const CpuSet& cpus) {
    std::vector<const std::vector<int>*> near_gpu;
    for (const int rank : ranks) near_gpu.push_back(gpus_[at(rank)].gpu ? &near_.at(*gpus_[at(rank)].gpu) : nullptr);
    const CorePools pools = make_core_pools(topology_, kind_, table_.cores(cpus), ranks, near_gpu);
    for (const CorePool& pool : pools.pools) {
      const std::size_t cores = pool.cores.size();
      const std::size_t members = pool.ranks.size();
      auto next = pool.cores.begin();
      for (std::size_t i = 0; i < members; ++i) {
        const int rank = pool.ranks[i];
        CoreChoice& choice = choices_[at(rank)];
        if (members > cores) {
          choice.cores = pool.cores;
          choice.decision.reason = fmt::format("{} share {}", count_of(members, "rank"), count_of(cores, "core"));
        } else {
          const auto end = next + static_cast<std::ptrdiff_t>(cores / members + (i < cores % members ? 1 : 0));
          choice.cores.assign(next, end);
          next = end;
          choice.decision.reason = members == 1 ? std::string("all allowed cores there")
                                                : fmt::format("an even share of {} for local {}",
                                                              count_of(cores, "core"), format_ranks(pool.ranks));
        }
        choice.sharers = pool.ranks;
        std::sort(choice.cores.begin(), choice.cores.end());
        choice.numa_node.reason = reason_of(pools.reason.at(rank), rank);
      }
    }
  }

  /// Each rank gets what it would get if all could use the union, restricted to its own set.
  void divide_overlapping() {
    std::vector<int> all;
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) all.push_back(static_cast<int>(rank));
    divide(all, allowed_.all());
    for (const int rank : all) {
      CoreChoice& choice = choices_[at(rank)];
      const std::size_t before = choice.cores.size();
      std::erase_if(choice.cores,
                    [&](int core) { return !topology_.cores()[at(core)].cpus.intersects(allowed_.of(rank)); });
      if (choice.cores.empty()) {
        keep_own(rank, "it has none of the cores that were to be this rank's");
      } else if (choice.cores.size() < before) {
        choice.decision.reason += fmt::format(", as far as {} reaches", kOwnMask);
      }
    }
  }

  std::string reason_of(PoolReason reason, int rank) const {
    const auto& gpu = gpus_[at(rank)].gpu;
    const std::string place = gpu ? fmt::format("GPU {}", *gpu) : "this rank's place";
    switch (reason) {
      case PoolReason::near_gpu: return fmt::format("nearest to {}", place);
      case PoolReason::next_to_gpu: return fmt::format("no core next to {} is allowed; these are the nearest", place);
      case PoolReason::made_room:
        return fmt::format("next to {} there are more ranks than allowed cores; here are some to spare", place);
      case PoolReason::spread: break;
    }
    return gpu ? fmt::format("the ranks are spread over the places that are equally near to {}", place)
               : "without GPUs, the ranks are spread over the machine in proportion to the allowed cores";
  }

  const Topology& topology_;
  PoolKind kind_;
  const AllowedSets& allowed_;
  const std::vector<GpuChoice>& gpus_;
  CoreTable table_;
  std::map<int, std::vector<int>> near_;  ///< near_cores() of each GPU in use
  std::vector<CoreChoice> choices_;
};

/// Policy core: each rank keeps the core of its list that the fewest earlier ranks have; the first in a tie.
void keep_one_core(const Topology& topology, std::vector<CoreChoice>& choices) {
  std::vector<int> uses(topology.cores().size());
  for (CoreChoice& choice : choices) {
    const int core = *std::min_element(choice.cores.begin(), choice.cores.end(),
                                       [&](int a, int b) { return uses[at(a)] < uses[at(b)]; });
    choice.decision.reason = fmt::format("one core of {}", choice.decision.reason);
    choice.cores = {core};
    ++uses[at(core)];
  }
}

void explain_numa_node(const Topology& topology, const AllowedSets& allowed, const std::vector<GpuChoice>& gpus,
                       std::vector<CoreChoice>& choices) {
  std::vector<std::vector<int>> users(topology.numa_nodes().size());
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    for (const int node : choices[rank].numa_nodes) users[at(node)].push_back(static_cast<int>(rank));
  }
  std::vector<std::string> use;
  for (std::size_t i = 0; i < users.size(); ++i) {
    const CpuSet& cpus = topology.numa_nodes()[i].cpus;
    use.push_back(!users[i].empty()                 ? fmt::format("has local {}", format_ranks(users[i]))
                  : cpus.empty()                    ? "memory without cores"
                  : !cpus.intersects(allowed.all()) ? "no core is allowed"
                                                    : "not needed by any rank");
  }
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    CoreChoice& choice = choices[rank];
    Alternatives alternatives;
    choice.numa_node.subject = "NUMA node";
    choice.numa_node.chosen = numbers(topology, choice.numa_nodes);
    if (choice.numa_nodes.empty()) choice.numa_node.reason = "the NUMA node of these cores is not known";
    for (std::size_t i = 0; i < users.size(); ++i) {
      if (std::binary_search(choice.numa_nodes.begin(), choice.numa_nodes.end(), static_cast<int>(i))) continue;
      const NumaNode& node = topology.numa_nodes()[i];
      alternatives.add([&] {
        std::string text = fmt::format("{}: {}", node.os_index, use[i]);
        if (gpus[rank].gpu) {
          const Distance far = topology.distance(topology.gpus()[at(*gpus[rank].gpu)].locality, node);
          text += fmt::format("; {} to GPU {}", to_string(far.path), *gpus[rank].gpu);
        }
        return text;
      });
    }
    choice.numa_node.alternatives = std::move(alternatives).take();
  }
}

/// Mentions what the other ranks of the same NUMA node or package got, if each has its own cores.
void explain_cores(std::vector<CoreChoice>& choices) {
  for (CoreChoice& choice : choices) {
    Alternatives alternatives;
    for (const int other : choice.sharers) {
      const CoreChoice& theirs = choices[at(other)];
      if (choice.shared || &theirs == &choice) continue;
      alternatives.add([&] { return fmt::format("{}: local rank {} has them", theirs.decision.chosen, other); });
    }
    choice.decision.alternatives = std::move(alternatives).take();
  }
}

}  // namespace

std::vector<CoreChoice> assign_cores(const Topology& topology, BindPolicy policy, const AllowedSets& allowed,
                                     const std::vector<GpuChoice>& gpus) {
  std::vector<CoreChoice> choices = Division(topology, policy, allowed, gpus).run();
  if (policy == BindPolicy::core) keep_one_core(topology, choices);
  const CoreTable table(topology);
  std::vector<int> uses(topology.cores().size());
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    CoreChoice& choice = choices[rank];
    choice.near = choice.cores;
    if (policy == BindPolicy::none) {
      choice.cores = table.cores(allowed.of(static_cast<int>(rank)));
      choice.numa_node.reason = choice.decision.reason = "binding is off: all that is allowed";
      choice.sharers.clear();
    }
    for (const int core : choice.cores) ++uses[at(core)];
    choice.cpus = allowed_part(topology, choice.cores, allowed.of(static_cast<int>(rank)));
    choice.numa_nodes = numa_nodes_of(topology, choice.cores);
    choice.decision.subject = "cores";
    choice.decision.chosen = fmt::format("{} (processors {})", choice.cores.size(), choice.cpus.to_string());
  }
  for (CoreChoice& choice : choices) {
    choice.shared = std::any_of(choice.cores.begin(), choice.cores.end(), [&](int core) { return uses[at(core)] > 1; });
  }
  explain_numa_node(topology, allowed, gpus, choices);
  explain_cores(choices);
  return choices;
}

}  // namespace ddp::topology
