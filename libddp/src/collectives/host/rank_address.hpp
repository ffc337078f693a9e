// What a rank says about itself so that others can decide with whom it shares memory, and reach it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "collectives/shm/endpoint.hpp"

namespace ddp::collectives::host {

struct RankAddress {
  std::string domain;             ///< DDP_MEMORY_DOMAIN
  std::uint64_t memory_left = 0;  ///< bytes of shared memory that its other groups leave it
  shm::EndpointAddress shared_memory{};
  Bytes tcp{};
};
constexpr auto description(const RankAddress*) {
  return base::describe(
      {"address of a rank's CPU backend", 1},
      base::fields<&RankAddress::domain, &RankAddress::memory_left, &RankAddress::shared_memory, &RankAddress::tcp>());
}

/// Which ranks share memory: of each rank, the lowest one in its domain. All ranks come to the same from the same
/// addresses.
struct Domains {
  std::vector<int> leaders;  ///< by rank
  /// "rank 3 does not share memory with rank 0 of its node, but uses TCP: ..."; empty where it does.
  std::vector<std::string> reasons;
};

/// @param nodes of each rank, as the launcher says: only for the reasons.
Domains find_domains(const std::vector<RankAddress>& addresses, const std::vector<int>& nodes);

}  // namespace ddp::collectives::host
