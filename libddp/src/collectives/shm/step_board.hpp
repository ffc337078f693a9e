// The steps of a group's collectives, counted alike by all ranks. In a step a rank may show data to the others in its
// slot, then a part of the step's result; it reads theirs, and says when it reads no more. Step k uses flag k modulo
// kFlags, once all have left step k - kFlags, and for more data than fit beside it slot k modulo kSlots, once all have
// left step k - kSlots. Every word has one writer; numbers may wrap.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

// ---- Tells the ranks of a group that something has changed in the shared memory, at the cost of one load where nobody
// sleeps.

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

class StepBoard {
 public:
  /// Prepares this rank's own slots: before any other rank uses the segment.
  StepBoard(const SegmentView& view, int rank, std::uint64_t first_step, Doorbell& bell);

  int rank() const { return rank_; }
  int ranks() const { return view_.layout().ranks(); }
  std::size_t slot_bytes() const { return view_.layout().slot_bytes(); }

  /// Whether all have left the step whose place @p step will use, of @p bytes at this rank.
  bool place_is_free(std::uint64_t step, std::size_t bytes) noexcept {
    const std::uint64_t left = former(step, bytes) + 1;
    return reached(least_done_, left) || look_at_done(left);
  }
  /// The last step that had the place which @p step will use.
  static std::uint64_t former(std::uint64_t step, std::size_t bytes) noexcept {
    return step - (bytes <= kInlineBytes ? kFlags : kSlots);
  }
  /// Where this rank's @p bytes of the step go.
  std::byte* own_data(std::uint64_t step, std::size_t bytes) const noexcept { return data_of(rank_, step, bytes); }
  void show(std::uint64_t step, std::uint64_t fingerprint) noexcept {
    StepFlag& flag = view_.step_flag(rank_, step);
    flag.fingerprint = fingerprint;
    flag.done = done_;
    flag.step.store(step + 1, std::memory_order_release);
    bell_.changed();
  }
  void show_result(std::uint64_t step) noexcept {
    view_.result_flag(rank_, step).step.store(step + 1, std::memory_order_release);
    bell_.changed();
  }
  /// This rank reads no more in @p step, nor in those before.
  void leave(std::uint64_t step) noexcept {
    done_ = step + 1;
    view_.control(rank_).done.store(done_, std::memory_order_seq_cst);
    bell_.left();
  }

  bool shown(int rank, std::uint64_t step) noexcept {
    const StepFlag& flag = view_.step_flag(rank, step);
    if (flag.step.load(std::memory_order_acquire) != step + 1) return false;
    auto& known = known_done_[static_cast<std::size_t>(rank)];
    if (reached(flag.done, known)) known = flag.done;
    return true;
  }
  bool result_shown(int rank, std::uint64_t step) const noexcept {
    return view_.result_flag(rank, step).step.load(std::memory_order_acquire) == step + 1;
  }
  /// After shown().
  std::uint64_t fingerprint(int rank, std::uint64_t step) const noexcept {
    return view_.step_flag(rank, step).fingerprint;
  }
  /// What @p rank has shown, @p bytes in all.
  std::byte* data_of(int rank, std::uint64_t step, std::size_t bytes) const noexcept {
    return bytes <= kInlineBytes ? view_.step_flag(rank, step).data.data() : view_.slot(rank, step);
  }
  bool left(int rank, std::uint64_t step) const noexcept {
    return reached(known_done_[static_cast<std::size_t>(rank)], step + 1);
  }

 private:
  static bool reached(std::uint64_t count, std::uint64_t target) noexcept {
    return static_cast<std::int64_t>(count - target) >= 0;
  }
  bool look_at_done(std::uint64_t target) noexcept;

  SegmentView view_;
  int rank_;
  Doorbell& bell_;
  std::uint64_t done_;
  std::uint64_t least_done_;
  std::vector<std::uint64_t> known_done_;
};

}  // namespace ddp::collectives::shm
