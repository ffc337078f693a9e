// The backend of ranks that share memory: ranks of one user on one host, in one network namespace.
#pragma once

#include <deque>
#include <memory>

#include <ddp/backend.hpp>

#include "collectives/shm/collective_run.hpp"
#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/peer_transfers.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/shared_segment.hpp"
#include "collectives/shm/step_board.hpp"

namespace ddp::collectives::shm {

/// For ranks that are known to share memory; connect throws unavailable where they do not.
std::unique_ptr<Backend> create(const BackendConfig& config);

/// The same with an endpoint that exists already: for a backend that learns only from all addresses who shares memory
/// with whom. connect then gets the packed addresses of the endpoints of this group's ranks.
std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint);

/// For tests.
struct Settings {
  std::uint64_t first_step = 0;  ///< of the leader: where step numbers begin
  PhaseHook hook{};
  bool reads = true;  ///< whether it tries to read other ranks' memory
};
std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint, const Settings& settings);

// ---- One rank's view of a connected group: the shared memory and everything that works on it.

struct ShmGroup {
  /// Before other ranks use the segment.
  ShmGroup(SharedSegment shared, int rank, std::uint64_t first_step, const Settings& settings)
      : segment(std::move(shared)),
        share(segment.view().layout().region_bytes()),
        bell(segment.view(), rank),
        verdict(segment.view(), rank),
        watch(segment, rank),
        board(segment.view(), rank, first_step, bell),
        run(board, first_step, settings.hook) {
    for (int peer = 0; peer < segment.view().layout().ranks(); ++peer) {
      transfers.emplace_back(segment.view(), rank, peer, first_step / sizeof(RecordHeader) * sizeof(RecordHeader), bell,
                             settings.reads);
    }
    watch.announce();
  }
  ~ShmGroup() { watch.withdraw(RankState::closed); }
  ShmGroup& operator=(ShmGroup&&) = delete;

  SharedSegment segment;
  BudgetShare share;
  Doorbell bell;
  FailureBoard verdict;
  LifeWatch watch;
  StepBoard board;
  CollectiveRun run;
  std::deque<PeerTransfers> transfers;  ///< by peer
};

}  // namespace ddp::collectives::shm
