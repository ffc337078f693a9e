#include "topology/placement/gpu_assignment.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/placement/balanced_assignment.hpp"

namespace ddp::topology {
namespace {

/// GPUs that ranks may get, and why the other ones are left out.
struct Candidates {
  std::vector<int> gpus;
  std::map<int, std::string> left_out{};
};

Candidates named_candidates(const Topology& topology, const std::vector<int>& named) {
  Candidates candidates;
  for (const Gpu& gpu : topology.gpus()) candidates.left_out[gpu.index] = "not among the requested GPUs";
  for (const int index : named) {
    if (index < 0 || at(index) >= topology.gpus().size()) {
      throw Error{
          {.code = ErrorCode::invalid_argument,
           .attempted = "placing ranks on a node",
           .cause = fmt::format(
               "GPU {} was requested, but the machine has {}", index,
               topology.gpus().empty() ? "none" : fmt::format("the GPUs 0 to {}", topology.gpus().size() - 1))}};
    }
    const Gpu& gpu = topology.gpus()[at(index)];
    if (gpu.visible) {
      candidates.gpus.push_back(index);
      candidates.left_out.erase(index);
    } else {
      candidates.left_out[index] = fmt::format("hidden: {}", gpu.hidden_reason);
    }
  }
  return candidates;
}

Vendor used_vendor(const Topology& topology) {
  std::array<int, 4> of_vendor{};  // by the numbers of Vendor
  for (const Gpu& gpu : topology.gpus()) {
    if (gpu.visible) ++of_vendor.at(static_cast<std::size_t>(gpu.vendor));
  }
  // max_element returns the first of several: NVIDIA before AMD before Intel
  return static_cast<Vendor>(std::max_element(of_vendor.begin(), of_vendor.end()) - of_vendor.begin());
}

Candidates visible_candidates(const Topology& topology) {
  const Vendor vendor = used_vendor(topology);
  Candidates candidates{.gpus = usable_gpus(topology)};
  for (const Gpu& gpu : topology.gpus()) {
    if (!gpu.visible) {
      candidates.left_out[gpu.index] = fmt::format("hidden: {}", gpu.hidden_reason);
    } else if (gpu.vendor != vendor) {
      candidates.left_out[gpu.index] =
          fmt::format("of vendor {}; those of {} are used", to_string(gpu.vendor), to_string(vendor));
    }
  }
  return candidates;
}

/// The position of a GPU in the machine, from the outside in: package, NUMA node, bridges.
std::vector<int> position(const Gpu& gpu) {
  std::vector<int> levels{gpu.locality.package, gpu.locality.numa_node};
  levels.insert(levels.end(), gpu.locality.bridges.begin(), gpu.locality.bridges.end());
  return levels;
}

/// Takes @p count of @p gpus (ascending): packages, and in them NUMA nodes and PCI bridges, have numbers of them
/// that differ as little as possible. Where it does not divide, the part with more GPUs gets more, or the first one.
std::vector<int> spread(const Topology& topology, const std::vector<int>& gpus, std::size_t count, std::size_t level) {
  if (count >= gpus.size()) return gpus;
  std::map<int, std::vector<int>> parts;
  bool deeper = false;
  for (const int gpu : gpus) {
    const std::vector<int> levels = position(topology.gpus()[at(gpu)]);
    parts[level < levels.size() ? levels[level] : -1].push_back(gpu);
    deeper = deeper || level < levels.size();
  }
  if (!deeper) return {gpus.begin(), gpus.begin() + static_cast<std::ptrdiff_t>(count)};

  struct Part {
    std::vector<int> gpus;
    std::size_t taken;
  };
  std::vector<Part> order;
  for (auto& [key, members] : parts) order.push_back({std::move(members), 0});
  // by the first GPU, and not by the number of the bridge, which has no meaning
  std::sort(order.begin(), order.end(), [](const Part& a, const Part& b) { return a.gpus.front() < b.gpus.front(); });
  for (std::size_t i = 0; i < count; ++i) {
    const auto rank_of = [](const Part& part) {
      const std::size_t left = part.gpus.size() - part.taken;
      return std::tuple(left == 0, part.taken, -static_cast<std::ptrdiff_t>(left));
    };
    const auto next = std::min_element(order.begin(), order.end(),
                                       [&](const Part& a, const Part& b) { return rank_of(a) < rank_of(b); });
    ++next->taken;
  }
  std::vector<int> chosen;
  for (const Part& part : order) {
    const std::vector<int> of_part = spread(topology, part.gpus, part.taken, level + 1);
    chosen.insert(chosen.end(), of_part.begin(), of_part.end());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

/// Processors of @p cores.
CpuSet cpus_of(const Topology& topology, const std::vector<int>& cores) {
  std::vector<int> cpus;
  for (const int core : cores) {
    const std::vector<int> own = topology.cores()[at(core)].cpus.to_vector();
    cpus.insert(cpus.end(), own.begin(), own.end());
  }
  return CpuSet{cpus};
}

/// Fewer ranks than GPUs, all with the same allowed processors: first the GPUs that are next to some of these.
std::vector<int> choose_few(const Topology& topology, const std::vector<int>& gpus, const CpuSet& allowed,
                            std::size_t count) {
  std::vector<int> near;
  std::vector<int> far;
  for (const int gpu : gpus) {
    const bool has_cores =
        cpus_of(topology, near_cores(topology, topology.gpus()[at(gpu)].locality)).intersects(allowed);
    (has_cores ? near : far).push_back(gpu);
  }
  std::vector<int> chosen = spread(topology, near, std::min(count, near.size()), 0);
  const std::vector<int> others = spread(topology, far, count - chosen.size(), 0);
  chosen.insert(chosen.end(), others.begin(), others.end());
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

/// Ranks that may run on different processors get GPUs next to these.
std::vector<int> match(const Topology& topology, const std::vector<int>& gpus, const AllowedSets& allowed,
                       int num_ranks) {
  std::vector<std::vector<Option>> options(at(num_ranks));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Locality& place = topology.gpus()[at(gpus[i])].locality;
    const CpuSet near = cpus_of(topology, near_cores(topology, place));
    std::vector<int> of_package;
    for (std::size_t core = 0; core < topology.cores().size(); ++core) {
      if (topology.cores()[core].package == place.package) of_package.push_back(static_cast<int>(core));
    }
    const CpuSet package = cpus_of(topology, of_package);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const CpuSet& own = allowed.of(rank);
      options[at(rank)].push_back(
          {.target = static_cast<int>(i), .cost = own.intersects(near) ? 0 : (own.intersects(package) ? 1 : 2)});
    }
  }
  std::vector<int> chosen = assign_balanced(options, static_cast<int>(gpus.size()));
  for (int& gpu : chosen) gpu = gpus[at(gpu)];
  return chosen;
}

struct Outcome {
  std::vector<int> of_rank;
  std::string reason{};
};

Outcome choose(const Topology& topology, const PlacementRequest& request, const AllowedSets& allowed,
               const std::vector<int>& gpus) {
  const std::size_t num_ranks = at(request.num_ranks);
  Outcome outcome{.of_rank = std::vector<int>(num_ranks)};
  if (request.gpus) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) outcome.of_rank[rank] = gpus[rank % gpus.size()];
    outcome.reason = num_ranks > gpus.size() ? fmt::format(
                                                   "the ranks take turns on the {} requested GPUs, which "
                                                   "are fewer than the {} ranks",
                                                   gpus.size(), num_ranks)
                                             : "the requested GPUs are assigned in their order";
  } else if (!allowed.same()) {
    outcome.of_rank = match(topology, gpus, allowed, request.num_ranks);
    outcome.reason = "the ranks were started with different processors, and get GPUs near to these";
  } else if (num_ranks < gpus.size()) {
    outcome.of_rank = choose_few(topology, gpus, allowed.all(), num_ranks);
    outcome.reason = fmt::format("{} of {} GPUs, spread over packages, NUMA nodes and PCI switches with allowed cores",
                                 num_ranks, gpus.size());
  } else {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) outcome.of_rank[rank] = gpus[rank * gpus.size() / num_ranks];
    outcome.reason = num_ranks == gpus.size()
                         ? "one GPU for each rank, in PCI order"
                         : fmt::format("{} ranks share {} GPUs, neighbours the same one", num_ranks, gpus.size());
  }
  return outcome;
}

std::string describe(const Gpu& gpu) { return fmt::format("{} ({})", gpu.index, gpu.pci.to_string()); }

}  // namespace

std::vector<int> usable_gpus(const Topology& topology) {
  const Vendor vendor = used_vendor(topology);
  std::vector<int> gpus;
  for (const Gpu& gpu : topology.gpus()) {
    if (gpu.visible && gpu.vendor == vendor) gpus.push_back(gpu.index);
  }
  return gpus;
}

std::vector<GpuChoice> assign_gpus(const Topology& topology, const PlacementRequest& request,
                                   const AllowedSets& allowed) {
  const Candidates candidates = request.gpus ? named_candidates(topology, *request.gpus) : visible_candidates(topology);
  std::vector<GpuChoice> choices(at(request.num_ranks));
  std::map<int, std::vector<int>> users;
  std::string reason;
  if (candidates.gpus.empty()) {
    reason = topology.gpus().empty() ? "the machine has no GPU" : "no GPU may be used";
  } else {
    Outcome outcome = choose(topology, request, allowed, candidates.gpus);
    reason = std::move(outcome.reason);
    for (int rank = 0; rank < request.num_ranks; ++rank) {
      choices[at(rank)].gpu = outcome.of_rank[at(rank)];
      users[outcome.of_rank[at(rank)]].push_back(rank);
    }
  }
  std::vector<std::string> rest;  // what became of each GPU, as others see it
  for (const Gpu& gpu : topology.gpus()) {
    const auto left_out = candidates.left_out.find(gpu.index);
    const auto used = users.find(gpu.index);
    rest.push_back(fmt::format("{}: {}", describe(gpu),
                               left_out != candidates.left_out.end() ? left_out->second
                               : used != users.end() ? fmt::format("given to local {}", format_ranks(used->second))
                                                     : "not needed by any rank"));
  }
  for (GpuChoice& choice : choices) {
    choice.shared = choice.gpu && users.at(*choice.gpu).size() > 1;
    choice.decision = {
        .subject = "GPU", .chosen = choice.gpu ? describe(topology.gpus()[at(*choice.gpu)]) : "none", .reason = reason};
    Alternatives alternatives;
    for (const Gpu& gpu : topology.gpus()) {
      if (choice.gpu != gpu.index) alternatives.add([&] { return rest[at(gpu.index)]; });
    }
    choice.decision.alternatives = std::move(alternatives).take();
  }
  return choices;
}

}  // namespace ddp::topology
