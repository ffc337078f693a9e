#include "topology/placement/core_pools.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/placement/balanced_assignment.hpp"

namespace ddp::topology {
namespace {

/// A NUMA node or package: (package, NUMA node), in the order of the machine.
using PoolKey = std::pair<int, int>;

PoolKey key_of(const Topology& topology, PoolKind kind, int index) {
  const Core& core = topology.cores()[at(index)];
  if (kind == PoolKind::package || core.numa_node < 0) return {core.package, -1};
  return {topology.numa_nodes()[at(core.numa_node)].package, core.numa_node};
}

/// Positions of pools, ascending.
using Home = std::vector<std::size_t>;

bool have_common(const std::vector<int>& a, const std::vector<int>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

std::vector<int> packages_of(const Topology& topology, const std::vector<int>& cores) {
  std::set<int> packages;
  for (const int core : cores) packages.insert(topology.cores()[at(core)].package);
  return {packages.begin(), packages.end()};
}

/// Pools while they are filled with ranks. A pool that is merged into another stays, without cores.
class PoolTable {
 public:
  PoolTable(const Topology& topology, PoolKind kind, const std::vector<int>& cores) : topology_(topology), kind_(kind) {
    std::map<PoolKey, std::vector<int>> by_key;
    for (const int core : cores) by_key[key_of(topology, kind, core)].push_back(core);
    for (auto& [key, own] : by_key) {
      index_.emplace(key, pools_.size());
      std::vector<int> packages = packages_of(topology, own);
      pools_.push_back({.packages = std::move(packages), .cores = std::move(own)});
    }
  }

  Home all() const {
    Home all(pools_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }

  /// The pools with some of @p cores; empty if none of these is allowed.
  Home pools_with(const std::vector<int>& cores) const {
    std::set<std::size_t> found;
    for (const int core : cores) {
      const auto own = index_.find(key_of(topology_, kind_, core));
      if (own != index_.end()) found.insert(own->second);
    }
    return {found.begin(), found.end()};
  }

  /// The pools on the packages of @p cores, or all pools if there are none.
  Home pools_next_to(const std::vector<int>& cores) const {
    const std::vector<int> packages = packages_of(topology_, cores);
    Home found;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (have_common(pools_[i].packages, packages)) found.push_back(i);
    }
    return found.empty() ? all() : found;
  }

  void enter(const std::vector<int>& ranks, std::size_t pool) {
    pools_[pool].ranks.insert(pools_[pool].ranks.end(), ranks.begin(), ranks.end());
  }

  /// Gives pools blocks of ranks in proportion to their cores; with fewer ranks than pools, gives ranks blocks of
  /// pools.
  void spread(const std::vector<int>& ranks, const Home& home) {
    if (ranks.size() < home.size()) {
      std::vector<std::size_t> first(ranks.size(), pools_.size());
      for (std::size_t i = 0; i < home.size(); ++i) {
        const std::size_t owner = i * ranks.size() / home.size();
        if (first[owner] == pools_.size()) {
          first[owner] = home[i];
          enter({ranks[owner]}, home[i]);
        } else {
          merge(home[i], first[owner]);
        }
      }
      return;
    }
    std::vector<int> sizes;
    for (const std::size_t pool : home) sizes.push_back(static_cast<int>(pools_[pool].cores.size()));
    const std::vector<int> counts = in_proportion(static_cast<int>(ranks.size()), sizes);
    auto next = ranks.begin();
    for (std::size_t i = 0; i < home.size(); ++i) {
      enter({next, next + counts[i]}, home[i]);
      next += counts[i];
    }
  }

  /// The pool of @p home in which one more rank gets the most cores.
  std::size_t emptiest(const Home& home) const {
    return *std::min_element(home.begin(), home.end(), [&](std::size_t a, std::size_t b) {
      return (pools_[a].ranks.size() + 1) * pools_[b].cores.size() <
             (pools_[b].ranks.size() + 1) * pools_[a].cores.size();
    });
  }

  /// Moves the highest ranks out of pools with more ranks than cores while others have spare cores. Returns the moved
  /// ranks.
  std::vector<int> make_room() {
    std::vector<int> moved;
    for (CorePool& pool : pools_) {
      std::sort(pool.ranks.begin(), pool.ranks.end());
      while (pool.ranks.size() > pool.cores.size()) {
        Home spare;
        for (std::size_t i = 0; i < pools_.size(); ++i) {
          if (pools_[i].ranks.size() < pools_[i].cores.size()) spare.push_back(i);
        }
        if (spare.empty()) return moved;
        Home near;
        std::copy_if(spare.begin(), spare.end(), std::back_inserter(near),
                     [&](std::size_t i) { return have_common(pools_[i].packages, pool.packages); });
        moved.push_back(pool.ranks.back());
        enter({pool.ranks.back()}, emptiest(near.empty() ? spare : near));
        pool.ranks.pop_back();
      }
    }
    return moved;
  }

  std::vector<CorePool> pools() && {
    std::erase_if(pools_, [](const CorePool& pool) { return pool.cores.empty(); });
    for (CorePool& pool : pools_) std::sort(pool.ranks.begin(), pool.ranks.end());
    return std::move(pools_);
  }

 private:
  void merge(std::size_t from, std::size_t into) {
    CorePool& target = pools_[into];
    target.cores.insert(target.cores.end(), pools_[from].cores.begin(), pools_[from].cores.end());
    target.packages = packages_of(topology_, target.cores);
    pools_[from] = {};
  }

  const Topology& topology_;
  PoolKind kind_;
  std::map<PoolKey, std::size_t> index_;
  std::vector<CorePool> pools_;
};

}  // namespace

std::vector<int> near_cores(const Topology& topology, const Locality& device) {
  const auto matching = [&](auto&& matches) {
    std::vector<int> found;
    for (std::size_t i = 0; i < topology.cores().size(); ++i) {
      if (matches(topology.cores()[i])) found.push_back(static_cast<int>(i));
    }
    return found;
  };
  const auto in_package = [&](const Core& core) { return device.package < 0 || core.package == device.package; };
  std::vector<int> found;
  if (device.numa_node >= 0) {
    found = matching([&](const Core& core) { return core.numa_node == device.numa_node; });
  }
  if (found.empty()) {
    found = matching([&](const Core& core) { return in_package(core) && core.cpus.intersects(device.cpus); });
  }
  if (found.empty()) found = matching(in_package);
  if (found.empty()) found = matching([](const Core&) { return true; });
  return found;
}

std::vector<int> in_proportion(int count, const std::vector<int>& weights) {
  const long long total = std::accumulate(weights.begin(), weights.end(), 0LL);
  std::vector<int> shares;
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  int left = count;
  for (const int weight : weights) {
    shares.push_back(static_cast<int>(count * static_cast<long long>(weight) / total));
    left -= shares.back();
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return count * static_cast<long long>(weights[a]) % total > count * static_cast<long long>(weights[b]) % total;
  });
  for (std::size_t i = 0; i < at(left); ++i) ++shares[order[i]];
  return shares;
}

CorePools make_core_pools(const Topology& topology, PoolKind kind, const std::vector<int>& cores,
                          const std::vector<int>& ranks, const std::vector<const std::vector<int>*>& near_gpu) {
  PoolTable table(topology, kind, cores);
  CorePools result;
  std::map<const std::vector<int>*, std::pair<Home, PoolReason>> homes;  // only looked up, so its order does not matter
  std::map<Home, std::vector<int>> members;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<int>* const near = near_gpu[i];
    auto known = homes.find(near);
    if (known == homes.end()) {
      Home home = near == nullptr ? table.all() : table.pools_with(*near);
      PoolReason reason = near == nullptr || home.size() > 1 ? PoolReason::spread : PoolReason::near_gpu;
      if (home.empty()) {
        home = table.pools_next_to(*near);
        reason = PoolReason::next_to_gpu;
      }
      known = homes.emplace(near, std::pair(std::move(home), reason)).first;
    }
    members[known->second.first].push_back(ranks[i]);
    result.reason[ranks[i]] = known->second.second;
  }

  // Place ranks with a single home first. A home of several pools is divided if no other home shares any; otherwise its
  // ranks fill what the others leave.
  const auto contested = [&](const Home& home) {
    return std::any_of(members.begin(), members.end(), [&](const auto& other) {
      return other.first != home &&
             std::find_first_of(home.begin(), home.end(), other.first.begin(), other.first.end()) != home.end();
    });
  };
  std::vector<const std::pair<const Home, std::vector<int>>*> fill_up;
  for (const auto& entry : members) {
    if (entry.first.size() == 1) {
      table.enter(entry.second, entry.first.front());
    } else if (contested(entry.first)) {
      fill_up.push_back(&entry);
    } else {
      table.spread(entry.second, entry.first);
    }
  }
  for (const auto* entry : fill_up) {
    for (const int rank : entry->second) table.enter({rank}, table.emptiest(entry->first));
  }

  for (const int rank : table.make_room()) result.reason[rank] = PoolReason::made_room;
  result.pools = std::move(table).pools();
  return result;
}

namespace {

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "placing ranks on a node",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

}  // namespace

AllowedSets::AllowedSets(const Topology& topology, const PlacementRequest& request) {
  const std::size_t num_ranks = static_cast<std::size_t>(request.num_ranks);
  const std::size_t given = request.allowed.size();
  if (given > 1 && given != num_ranks) {
    reject(fmt::format("{} sets of allowed processors for {} ranks", given, num_ranks),
           "give one for all ranks, one for each, or none");
  }
  for (std::size_t i = 0; i < std::max<std::size_t>(given, 1); ++i) {
    const CpuSet& wanted = given == 0 ? topology.allowed_cpus() : request.allowed[i];
    CpuSet set = wanted & topology.cpus();
    if (set.empty()) {
      reject(fmt::format("the allowed processors{} ({}) are none of those of the machine ({})",
                         given > 1 ? fmt::format(" of local rank {}", i) : "",
                         wanted.empty() ? "an empty set" : wanted.to_string(), topology.cpus().to_string()),
             fmt::format("is {} the machine that the ranks run on?", topology.source()));
    }
    all_ = all_ | set;
    sets_.push_back(std::move(set));
  }
  sets_.resize(num_ranks, sets_.front());

  CpuSet seen;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const std::vector<int>& ranks) { return of(ranks.front()) == of(rank); });
    if (group != groups_.end()) {
      group->push_back(rank);
      continue;
    }
    groups_.push_back({rank});
    if (seen.intersects(of(rank))) groups_disjoint_ = false;
    seen = seen | of(rank);
  }
}

}  // namespace ddp::topology
