// Tells the ranks of a group that something has changed in the shared memory, at the cost of one load where nobody
// sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

class Doorbell {
 public:
  Doorbell(const SegmentView& view, int rank) : group_(&view.group()), view_(view), rank_(rank) {}

  /// Call after a change that another rank may wait for; the change must be a sequentially consistent store. From one
  /// thread.
  void changed() noexcept {
    auto& changes = view_.control(rank_).changes;
    changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    if (group_->sleepers.load(std::memory_order_seq_cst) != 0) ring();
  }

  /// Wakes all sleepers. From any thread.
  void ring() noexcept;

  /// Sleeps until another rank changes something, at most for @p limit. Returns at once when something has changed
  /// since the previous call returned: so poll and sleep alternate without losing a change. From any thread.
  void sleep(std::chrono::microseconds limit) noexcept;

 private:
  std::uint64_t changes_of_others() const noexcept;

  GroupControl* group_;
  SegmentView view_;
  int rank_;
  std::atomic<std::uint64_t> seen_{0};
};

}  // namespace ddp::collectives::shm
