// The processors that each rank of a node may use: one set for all, or one each if the job scheduler has bound tasks.
#pragma once

#include <vector>

#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

namespace ddp::topology {

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
