// How often each parameter has been marked ready in a step, and how often it must be.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

namespace ddp::reducer {

/// mark() is thread-safe.
class ReadyMarks {
 public:
  enum class Mark : std::uint8_t { early, ready, excess };

  /// @param needed by parameter.
  explicit ReadyMarks(std::vector<std::uint32_t> needed) : needed_(std::move(needed)), marks_(needed_.size()) {}

  /// Until accept_counts(), no mark makes a parameter ready.
  void count_only() noexcept { counting_ = true; }
  bool counting() const noexcept { return counting_; }
  /// From now on as often as @p counts says, by parameter.
  void accept_counts(std::span<const std::int64_t> counts) {
    counting_ = false;
    for (std::size_t i = 0; i < needed_.size(); ++i) needed_[i] = static_cast<std::uint32_t>(counts[i]);
  }

  void start_step() noexcept {
    for (auto& marks : marks_) marks.store(0, std::memory_order_relaxed);
  }
  /// Whoever gets `ready` sees what the other markers of the parameter did before.
  Mark mark(std::size_t index) noexcept {
    const std::uint32_t count = marks_[index].fetch_add(1, std::memory_order_acq_rel) + 1;
    if (counting_ || count < needed_[index]) return Mark::early;
    return count == needed_[index] ? Mark::ready : Mark::excess;
  }
  /// For a parameter that gets no mark in this step: later marks are excess. Before the step's first mark().
  void close(std::size_t index) noexcept { marks_[index].store(needed_[index], std::memory_order_relaxed); }

  std::uint32_t needed(std::size_t index) const { return needed_[index]; }
  std::uint32_t count(std::size_t index) const noexcept { return marks_[index].load(std::memory_order_acquire); }
  bool complete(std::size_t index) const noexcept { return count(index) >= needed_[index]; }

 private:
  std::vector<std::uint32_t> needed_;
  std::deque<std::atomic<std::uint32_t>> marks_;
  bool counting_ = false;
};

}  // namespace ddp::reducer
