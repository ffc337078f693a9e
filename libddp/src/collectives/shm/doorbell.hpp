// Tells the ranks of a group that something has changed in the shared memory, at the cost of one load where nobody
// sleeps.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

class Doorbell {
 public:
  Doorbell(const SegmentView& view, int rank) : group_(&view.group()), view_(view), rank_(rank) {}

  /// Call after a change that another rank may wait for. From one thread.
  void changed() noexcept {
    auto& changes = view_.control(rank_).changes;
    changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    if (group_->sleepers.load(std::memory_order_seq_cst) != 0) ring();
  }
  /// The same after this rank has left a step (RankControl::done), which concerns only those who wait for room.
  void left() noexcept {
    if ((group_->sleepers.load(std::memory_order_seq_cst) & kForRoom) != 0) ring();
  }

  /// Wakes all sleepers. From any thread.
  void ring() noexcept;

  /// What a sleeper waits for.
  enum class Wait : std::uint32_t { data, data_or_room };

  /// Sleeps until another rank changes something, at most for @p limit. Returns at once when something has changed
  /// since the previous call returned: so poll and sleep alternate without losing a change. From any thread.
  void sleep(std::chrono::microseconds limit, Wait wait = Wait::data_or_room) noexcept;

 private:
  // in GroupControl::sleepers
  static constexpr std::uint32_t kForData = 1;
  static constexpr std::uint32_t kForRoom = 2;

  std::uint64_t changes_of_others(Wait wait) const noexcept;

  GroupControl* group_;
  SegmentView view_;
  int rank_;
  std::array<std::atomic<std::uint64_t>, 2> seen_{};  ///< changes, by what is waited for
};

}  // namespace ddp::collectives::shm
