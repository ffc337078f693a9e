// What the leader of a group and its other ranks tell each other over its socket while they meet: one packet each.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

struct JoinMessage {
  enum class Kind : std::uint32_t {
    hello,   ///< from a rank: token, budget
    offer,   ///< from the leader, with the file: proof, region, first step
    ready,   ///< from a rank: it has the segment
    go,      ///< from the leader: all have it
    failed,  ///< from either: there will be no group
  };
  Kind kind = Kind::hello;
  std::uint32_t rank = 0;  ///< of the sender
  Secret secret{};
  std::uint64_t bytes = 0;       ///< hello: left of the rank's budget; offer: of a region
  std::uint32_t code = 0;        ///< failed: an ErrorCode
  std::uint64_t first_step = 0;  ///< offer
  std::vector<int> ranks{};      ///< failed: whom it concerns
  std::string text{};            ///< failed: the cause; at most 255 bytes

  static constexpr std::size_t kBytes = 4 + 4 + 4 + 4 + 16 + 8 + 8 + kMaxRanks / 8 + 256;
  std::array<std::byte, kBytes> pack() const;
  /// False for bytes that are no such message.
  static bool parse(std::span<const std::byte> packet, JoinMessage& message);
};

}  // namespace ddp::collectives::shm
