// What each rank sends to all others at wire-up: where it runs and how to reach it. At most 256 bytes, since a fence
// carries every record to every node.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/message_fields.hpp"
#include "base/process.hpp"
#include "topology/network/message_values.hpp"

namespace ddp::world {

/// The secret that a caller of a rank's peer channel must present.
using ChannelToken = std::array<std::byte, 16>;

struct EndpointRecord {
  std::string hostname;
  int node_rank = -1;  ///< as the launcher says; -1 if it does not
  /// Where this rank is reached, best first; the peer channel listens on all of them. At least one.
  std::vector<topology::CandidateAddress> addresses{};
  std::uint16_t channel_port = 0;  ///< of the peer channel; 0: none
  ChannelToken channel_token{};
  base::ProcessNumber process{};  ///< for ranks on its host
};
constexpr auto description(const EndpointRecord*) {
  return base::describe(
      {.name = "endpoint record", .version = 4, .most_bytes = 256, .shorten = "shorten the host name"},
      base::fields<&EndpointRecord::hostname, &EndpointRecord::channel_port, &EndpointRecord::channel_token,
                   &EndpointRecord::process>(),
      base::fields<&EndpointRecord::node_rank>(base::kCountOrNone),
      base::fields<&EndpointRecord::addresses>(base::Rule{.fewest = 1, .count = topology::kMostCandidates}));
}

/// Omits the last addresses of a record that would be too large. Throws Error(invalid_argument) when one address is too
/// many.
Bytes encode(const EndpointRecord& record);

}  // namespace ddp::world
