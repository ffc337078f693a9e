// Which ranks divide which cores: NUMA nodes or packages with their ranks.
#pragma once

#include <map>
#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

namespace ddp::topology {

/// Indices of the cores next to a device, allowed or not: those of its NUMA node, else those among its near processors,
/// else those of its package, else all. Ascending, never empty.
std::vector<int> near_cores(const Topology& topology, const Locality& device);

/// Shares of @p count in proportion to @p weights by largest remainder, the first among equals. No share exceeds its
/// weight while @p count is at most the sum of weights.
std::vector<int> in_proportion(int count, const std::vector<int>& weights);

/// Cores of one or several NUMA nodes (or packages) with the ranks that divide them.
struct CorePool {
  std::vector<int> packages;  ///< that the cores are of, ascending
  std::vector<int> cores;     ///< indices in Topology::cores(), NUMA node by NUMA node; never empty
  std::vector<int> ranks{};   ///< ascending; may be empty
};

/// Why a rank is in its pool.
enum class PoolReason {
  near_gpu,     ///< it is nearest to the rank's GPU
  spread,       ///< the rank has no GPU, or its GPU is as near to other pools
  next_to_gpu,  ///< nearest with allowed cores; none are next to the GPU itself
  made_room,    ///< the pool where the rank belongs has fewer cores than ranks
};

struct CorePools {
  std::vector<CorePool> pools;
  std::map<int, PoolReason> reason;  ///< by local rank
};

/// Cores by NUMA node, or by package.
enum class PoolKind { numa_node, package };

/// Puts each rank into one pool. No pool has more ranks than cores while another has cores to spare.
/// @param cores indices of those that may be used, ascending; not empty.
/// @param ranks local ranks, ascending.
/// @param near_gpu for each of @p ranks near_cores() of its GPU, or null.
CorePools make_core_pools(const Topology& topology, PoolKind kind, const std::vector<int>& cores,
                          const std::vector<int>& ranks, const std::vector<const std::vector<int>*>& near_gpu);

// The processors that each rank of a node may use: one set for all, or one each if the job scheduler has bound tasks.

class AllowedSets {
 public:
  /// Reads PlacementRequest::allowed. Throws Error(invalid_argument) for a wrong number of sets, and for a set without
  /// any processor of the machine.
  AllowedSets(const Topology& topology, const PlacementRequest& request);

  const CpuSet& of(int rank) const { return sets_[static_cast<std::size_t>(rank)]; }
  const CpuSet& all() const noexcept { return all_; }  ///< the union
  bool same() const noexcept { return groups_.size() == 1; }

  /// Ranks with equal sets, ascending; ordered by their first rank.
  const std::vector<std::vector<int>>& groups() const noexcept { return groups_; }
  /// The sets of different groups have no processor in common.
  bool groups_disjoint() const noexcept { return groups_disjoint_; }

 private:
  std::vector<CpuSet> sets_;
  CpuSet all_;
  std::vector<std::vector<int>> groups_;
  bool groups_disjoint_ = true;
};

}  // namespace ddp::topology
