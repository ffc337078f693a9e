#include "collectives/shm/life_watch.hpp"

#include "base/process.hpp"

namespace ddp::collectives::shm {

void LifeWatch::announce() {
  RankControl& own = segment_.view().control(rank_);
  const base::ProcessNumber number = base::own_process();
  own.pid = number.pid;
  own.pid_space = number.space;
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
  const RankControl& control = segment_.view().control(rank);
  if (!segment_.abandoned(rank) || control.state.load() != RankState::ready) return false;
  // Its lock also goes if anything in its process opens and closes the file, as what reads all of /proc/self/fd does.
  // Where the kernel can be asked, it has the last word; a number that another process has got since is left to
  // those who ask the rank itself.
  const base::ProcessNumber number{.pid = static_cast<pid_t>(control.pid), .space = control.pid_space};
  switch (base::life_of(number)) {
    case base::ProcessLife::runs:
    case base::ProcessLife::stopped: return false;
    case base::ProcessLife::unknown:
    case base::ProcessLife::gone: break;
  }
  return true;
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
