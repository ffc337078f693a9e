// What each rank tells all others at wire-up: where it runs and how it is reached. At most 256 bytes, since a fence
// carries every card to every node.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

namespace ddp::world {

/// The secret that a caller of a rank's peer channel must present.
using ChannelToken = std::array<std::byte, 16>;

struct RankCard {
  std::string hostname;
  int node_rank = -1;              ///< as the launcher says; -1 if it does not
  std::string address;             ///< numeric IPv4 or IPv6
  std::uint16_t channel_port = 0;  ///< of the peer channel; 0: none
  ChannelToken channel_token{};
};

inline constexpr std::size_t kLargestCardBytes = 256;

/// Throws Error(invalid_argument) when the card would be larger than kLargestCardBytes.
Bytes encode(const RankCard& card);
/// Throws Error(protocol) for bytes that are not a card of this version.
RankCard decode_rank_card(std::span<const std::byte> bytes);

}  // namespace ddp::world
