// One rank's view of a connected group: the shared memory and everything that works on it.
#pragma once

#include <deque>
#include <vector>

#include "collectives/shm/collective_run.hpp"
#include "collectives/shm/doorbell.hpp"
#include "collectives/shm/life_watch.hpp"
#include "collectives/shm/memory_budget.hpp"
#include "collectives/shm/peer_transfers.hpp"
#include "collectives/shm/shared_segment.hpp"
#include "collectives/shm/shared_verdict.hpp"
#include "collectives/shm/step_board.hpp"

namespace ddp::collectives::shm {

struct ShmGroup {
  /// Before other ranks use the segment.
  ShmGroup(SharedSegment shared, int rank, std::uint64_t first_step, PhaseHook hook)
      : segment(std::move(shared)),
        share(segment.view().layout().region_bytes()),
        bell(segment.view(), rank),
        verdict(segment.view(), rank),
        watch(segment, rank),
        board(segment.view(), rank, first_step, bell),
        run(board, first_step, hook) {
    for (int peer = 0; peer < segment.view().layout().ranks(); ++peer) {
      transfers.emplace_back(segment.view(), rank, peer, first_step / sizeof(RecordHeader) * sizeof(RecordHeader),
                             bell);
    }
    watch.announce();
  }
  ~ShmGroup() { watch.withdraw(RankState::closed); }
  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;

  SharedSegment segment;
  BudgetShare share;
  Doorbell bell;
  SharedVerdict verdict;
  LifeWatch watch;
  StepBoard board;
  CollectiveRun run;
  std::deque<PeerTransfers> transfers;  ///< by peer
};

}  // namespace ddp::collectives::shm
