// Which ranks of a group are gone: their processes have ended, or they have closed the group while nothing had failed.
#pragma once

#include <vector>

#include "collectives/shm/shared_segment.hpp"

namespace ddp::collectives::shm {

class LifeWatch {
 public:
  LifeWatch(const SharedSegment& segment, int rank) : segment_(segment), rank_(rank) {}

  /// This rank takes part from now on.
  void announce();
  /// This rank leaves for good; @p state: closed or resigned. Does nothing in a forked child, and the second time.
  void withdraw(RankState state) noexcept;

  /// The ranks whose processes have ended without closing the group. A system call a rank.
  std::vector<int> dead() const;
  /// Of @p ranks those that are gone in either way.
  std::vector<int> gone(const std::vector<int>& ranks) const;

 private:
  bool has_died(int rank) const;
  bool has_closed(int rank) const;

  const SharedSegment& segment_;
  int rank_;
};

}  // namespace ddp::collectives::shm
