#include "topology/placement/nic_assignment.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "topology/placement/balanced_assignment.hpp"

namespace ddp::topology {
namespace {

/// Two NICs are equally near if they have the same word and package: the number of PCI bridges changes neither
/// bandwidth nor, noticeably, latency, and only breaks ties.
std::pair<Path, bool> nearness(const Distance& distance) { return {distance.path, distance.other_package}; }

/// Distances of the training NICs from the places where ranks are.
class Surroundings {
 public:
  Surroundings(const Topology& topology, const std::vector<int>& nics) : topology_(topology), nics_(nics) {}

  std::vector<Distance> from(const GpuChoice& gpu, const CoreChoice& cores) const {
    if (gpu.gpu) {
      const Gpu& own = topology_.gpus()[at(*gpu.gpu)];
      const Locality& place = own.locality;
      if (place.package >= 0 || place.numa_node >= 0 || !place.bridges.empty()) {
        return measure([&](const Nic& nic) { return topology_.distance(own, nic); });
      }
    }
    std::set<int> numa_nodes;
    std::set<int> packages;
    for (const int core : cores.near) {
      numa_nodes.insert(topology_.cores()[at(core)].numa_node);
      packages.insert(topology_.cores()[at(core)].package);
    }
    numa_nodes.erase(-1);
    if (!numa_nodes.empty()) packages.clear();  // NUMA nodes say more
    Locality place;
    return measure([&](const Nic& nic) {
      Distance nearest{.path = Path::unknown, .other_package = true, .bridges = 0};
      for (const int node : numa_nodes) {
        nearest = std::min(nearest, topology_.distance(nic.locality, topology_.numa_nodes()[at(node)]));
      }
      for (const int package : packages) {
        place.package = package;
        nearest = std::min(nearest, ddp::distance(place, nic.locality));
      }
      return nearest;
    });
  }

 private:
  template <class Measure>
  std::vector<Distance> measure(Measure&& distance) const {
    std::vector<Distance> distances;
    for (const int nic : nics_) distances.push_back(distance(topology_.nics()[at(nic)]));
    return distances;
  }

  const Topology& topology_;
  const std::vector<int>& nics_;
};

/// Ranks of which some would have to share a further NIC get none, nor do those that compete with them.
void remove_contested(std::vector<std::vector<Option>>& options, const std::vector<int>& chosen) {
  std::map<int, int> users;
  for (const int target : chosen) {
    if (target >= 0) ++users[target];
  }
  std::set<int> contested;
  for (const auto& [target, count] : users) {
    if (count > 1) contested.insert(target);
  }
  for (bool grew = !contested.empty(); grew;) {
    grew = false;
    for (auto& of_rank : options) {
      if (std::none_of(of_rank.begin(), of_rank.end(),
                       [&](const Option& option) { return contested.count(option.target) != 0; })) {
        continue;
      }
      for (const Option& option : of_rank) contested.insert(option.target);
      of_rank.clear();
      grew = true;
    }
  }
}

/// Positions of the NICs of each rank, its own first.
std::vector<std::vector<int>> give_out(std::vector<std::vector<Option>> options, int num_nics) {
  std::vector<std::vector<int>> given(options.size());
  std::vector<int> chosen = assign_balanced(options, num_nics);
  while (std::any_of(chosen.begin(), chosen.end(), [](int target) { return target >= 0; })) {
    std::set<int> used;
    for (std::size_t rank = 0; rank < options.size(); ++rank) {
      if (chosen[rank] < 0) continue;
      given[rank].push_back(chosen[rank]);
      used.insert(chosen[rank]);
    }
    for (auto& of_rank : options) {
      std::erase_if(of_rank, [&](const Option& option) { return used.count(option.target) != 0; });
    }
    remove_contested(options, assign_balanced(options, num_nics));
    chosen = assign_balanced(options, num_nics);
  }
  return given;
}

std::string beyond(const Distance& far, const Distance& near) {
  if (far.path != near.path) return fmt::format("{}, further than {}", to_string(far.path), to_string(near.path));
  return fmt::format("{} to the other package, further than {} on its own", to_string(far.path), to_string(near.path));
}

}  // namespace

TrainingNics training_nics(const Topology& topology) {
  TrainingNics result;
  const auto& nics = topology.nics();
  const bool fabric = std::any_of(nics.begin(), nics.end(), [](const Nic& nic) { return nic.usable && nic.fabric; });
  double fastest = 0;
  for (const Nic& nic : nics) {
    if (nic.usable && nic.fabric == fabric) fastest = std::max(fastest, nic.rate_gbps);
  }
  for (const Nic& nic : nics) {
    if (!nic.usable) {
      result.left_out[nic.index] = fmt::format("not usable: {}", nic.unusable_reason);
    } else if (nic.fabric != fabric) {
      result.left_out[nic.index] = "neither RDMA nor a cluster fabric, which other NICs are";
    } else if (nic.rate_gbps > 0 && nic.rate_gbps < fastest / 2) {
      result.left_out[nic.index] =
          fmt::format("{:g} Gbit/s, less than half of the fastest NIC's {:g}", nic.rate_gbps, fastest);
    } else {
      result.nics.push_back(nic.index);
    }
  }
  return result;
}

std::vector<NicChoice> assign_nics(const Topology& topology, const std::vector<GpuChoice>& gpus,
                                   const std::vector<CoreChoice>& cores) {
  const TrainingNics training = training_nics(topology);
  const Surroundings surroundings(topology, training.nics);
  const int num_nics = static_cast<int>(training.nics.size());
  std::vector<std::vector<Distance>> distances;
  std::vector<std::vector<Option>> options(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    distances.push_back(surroundings.from(gpus[rank], cores[rank]));
    const auto& own = distances.back();
    if (own.empty()) continue;
    const auto nearest = nearness(*std::min_element(own.begin(), own.end()));
    for (int i = 0; i < num_nics; ++i) {
      if (nearness(own[at(i)]) == nearest) options[rank].push_back({.target = i, .cost = own[at(i)].bridges});
    }
  }
  const std::vector<std::vector<int>> given = give_out(options, num_nics);

  std::vector<std::vector<int>> users(training.nics.size());
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    for (const int i : given[rank]) users[at(i)].push_back(static_cast<int>(rank));
  }
  std::vector<std::string> owner;
  for (const auto& ranks : users) {
    owner.push_back(ranks.empty()
                        ? "there are not enough for all ranks"
                        : fmt::format("local {} {} it", format_ranks(ranks), ranks.size() == 1 ? "has" : "have"));
  }
  const auto name = [&](int i) { return topology.nics()[at(training.nics[at(i)])].name(); };

  std::vector<NicChoice> choices(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    NicChoice& choice = choices[rank];
    Alternatives alternatives;
    choice.decision.subject = "NIC";
    if (training.nics.empty()) {
      choice.decision.chosen = "none";
      choice.decision.reason = topology.nics().empty() ? "the machine has no NIC" : "no NIC is usable";
    } else {
      const Distance own = distances[rank][at(given[rank].front())];
      std::vector<std::string> names;
      for (const int i : given[rank]) {
        choice.nics.push_back(training.nics[at(i)]);
        names.push_back(name(i));
      }
      const std::size_t sharing = users[at(given[rank].front())].size();
      choice.decision.chosen = fmt::format("{}", fmt::join(names, ", "));
      choice.decision.reason = fmt::format(
          "nearest to its {}: {}{}", gpus[rank].gpu ? "GPU" : "cores", to_string(own.path),
          sharing > 1 ? fmt::format("; {} ranks share it, as there are more ranks than equally near NICs", sharing)
                      : std::string());
      std::vector<int> order(at(num_nics));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return distances[rank][at(a)] < distances[rank][at(b)]; });
      for (const int i : order) {
        if (std::find(given[rank].begin(), given[rank].end(), i) != given[rank].end()) continue;
        const Distance& far = distances[rank][at(i)];
        alternatives.add([&] {
          return fmt::format("{}: {}", name(i),
                             nearness(far) == nearness(own)
                                 ? fmt::format("{} as well, but {}", to_string(far.path), owner[at(i)])
                                 : beyond(far, own));
        });
      }
    }
    for (const auto& [nic, why] : training.left_out) {
      alternatives.add([&, left_out = nic, &reason = why] {
        return fmt::format("{}: {}", topology.nics()[at(left_out)].name(), reason);
      });
    }
    choice.decision.alternatives = std::move(alternatives).take();
  }
  return choices;
}

}  // namespace ddp::topology
