#include "collectives/shm/step_board.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

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

namespace {

// Not private: the waiters are other processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(limit.count() / 1'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000 * 1000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

std::uint64_t Doorbell::changes_of_others(Wait wait) const noexcept {
  std::uint64_t sum = 0;
  for (int other = 0; other < view_.layout().ranks(); ++other) {
    if (other == rank_) continue;
    const RankControl& control = view_.control(other);
    sum += control.changes.load(std::memory_order_seq_cst);
    if (wait == Wait::data_or_room) sum += control.done.load(std::memory_order_seq_cst);
  }
  return sum;
}

void Doorbell::ring() noexcept {
  // Whoever wakes up need not have run by the next change: it is woken once. The order matters, see sleep().
  group_->sleepers.exchange(0, std::memory_order_seq_cst);
  group_->bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(group_->bell);
}

void Doorbell::sleep(std::chrono::microseconds limit, Wait wait) noexcept {
  if (limit.count() <= 0) return;
  // Whoever takes this mark away changes the bell after that, and so after it was read here.
  const std::uint32_t bell = group_->bell.load(std::memory_order_seq_cst);
  group_->sleepers.fetch_or(wait == Wait::data ? kForData : kForData | kForRoom, std::memory_order_seq_cst);
  // Whoever changes something after this sum sees the mark and rings.
  const std::uint64_t changes = changes_of_others(wait);
  if (seen_[static_cast<std::size_t>(wait)].exchange(changes) == changes) futex_wait(group_->bell, bell, limit);
}

}  // namespace ddp::collectives::shm
