#include "collectives/shm/life_watch.hpp"

namespace ddp::collectives::shm {

void LifeWatch::announce() {
  RankControl& own = segment_.view().control(rank_);
  own.process = process_number();
  own.state.store(RankState::ready, std::memory_order_release);
}

void LifeWatch::withdraw(RankState state) noexcept {
  RankControl& own = segment_.view().control(rank_);
  if (own.process != process_number() || own.state.load() != RankState::ready) return;
  own.state.store(state, std::memory_order_seq_cst);
}

bool LifeWatch::has_closed(int rank) const {
  return segment_.view().control(rank).state.load(std::memory_order_acquire) == RankState::closed;
}

bool LifeWatch::has_died(int rank) const {
  if (rank == rank_ || segment_.view().control(rank).process == process_number()) return false;
  // in this order: a rank that closes says so before its lock goes
  return segment_.abandoned(rank) && segment_.view().control(rank).state.load() == RankState::ready;
}

std::vector<int> LifeWatch::dead() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < segment_.view().layout().ranks(); ++rank) {
    if (has_died(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> LifeWatch::gone(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    if (has_closed(rank) || has_died(rank)) found.push_back(rank);
  }
  return found;
}

}  // namespace ddp::collectives::shm
