#include "collectives/shm/step_board.hpp"

namespace ddp::collectives::shm {

StepBoard::StepBoard(const SegmentView& view, int rank, std::uint64_t first_step, Doorbell& bell)
    : view_(view),
      rank_(rank),
      bell_(bell),
      done_(first_step),
      least_done_(first_step),
      known_done_(static_cast<std::size_t>(view.layout().ranks()), first_step) {
  // No later step of a slot has this number before 2^64 more.
  for (std::uint64_t step = 0; step < kFlags; ++step) {
    view_.step_flag(rank, step).step.store(first_step, std::memory_order_relaxed);
    view_.result_flag(rank, step).step.store(first_step, std::memory_order_relaxed);
  }
  view_.control(rank).done.store(first_step, std::memory_order_release);
}

bool StepBoard::look_at_done(std::uint64_t target) noexcept {
  std::uint64_t least = done_;
  for (int other = 0; other < ranks(); ++other) {
    if (other == rank_) continue;
    std::uint64_t& known = known_done_[static_cast<std::size_t>(other)];
    if (!reached(known, target)) known = view_.control(other).done.load(std::memory_order_acquire);
    if (!reached(known, least)) least = known;
  }
  least_done_ = least;
  return reached(least, target);
}

}  // namespace ddp::collectives::shm
