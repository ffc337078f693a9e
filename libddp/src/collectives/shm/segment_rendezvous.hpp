// How the ranks of a group come to their shared memory. The leader, rank 0, makes it and hands it to every rank that
// proves over the leader's socket that it belongs to the group; all continue together once all have it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ddp/deadline.hpp>

#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/shared_segment.hpp"

namespace ddp::collectives::shm {

struct Rendezvous {
  Endpoint& endpoint;
  const std::vector<EndpointAddress>& addresses;  ///< by rank
  int rank;
  std::uint64_t first_step;  ///< the leader's counts
  PhaseHook hook;
  /// Gets the segment, with this rank's region claimed, and where steps begin; prepares what others will read.
  std::function<void(SharedSegment, std::uint64_t first_step)> prepare;
};

/// Returns when all ranks have prepared. Throws Error; ranks in it are those that did not come, failed or died.
void meet(const Rendezvous& rendezvous, Deadline deadline);

}  // namespace ddp::collectives::shm
