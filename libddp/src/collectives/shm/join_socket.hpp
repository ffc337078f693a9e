// Packets between the leader of a group and its other ranks over its socket while they join, with the file that goes
// along with one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddp/error.hpp>

#include "base/message_fields.hpp"
#include "base/unique_fd.hpp"
#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

struct JoinMessage {
  enum class Kind : std::uint8_t {
    hello,   ///< from a rank: token, budget
    offer,   ///< from the leader, with the file: proof, region, first step
    ready,   ///< from a rank: it has the segment
    go,      ///< from the leader: all have it
    failed,  ///< from either: there will be no group
  };
  Kind kind = Kind::hello;
  int rank = 0;  ///< of the sender
  Secret secret{};
  std::uint64_t bytes = 0;                  ///< hello: left of the rank's budget; offer: of a region
  std::uint64_t first_step = 0;             ///< offer
  ErrorCode code = ErrorCode::unavailable;  ///< failed
  std::vector<int> ranks{};                 ///< failed: whom it concerns
  std::string text{};                       ///< failed: the cause; at most 255 bytes
  bool operator==(const JoinMessage&) const = default;
};

inline constexpr std::size_t kMostJoinBytes = 8192;

constexpr auto description(const JoinMessage*) {
  using T = JoinMessage;
  constexpr base::Rule kRanks{.least = 0, .most = kMaxRanks - 1, .count = kMaxRanks};
  return base::describe({.name = "packet of a rank that joins", .version = 2, .most_bytes = kMostJoinBytes},
                        base::fields<&T::kind>(base::kUpTo<T::Kind::failed>),
                        base::fields<&T::rank>(base::Rule{.least = 0, .most = kMaxRanks - 1}),
                        base::fields<&T::secret, &T::bytes, &T::first_step>(),
                        base::fields<&T::code>(base::kUpTo<ErrorCode::aborted>), base::fields<&T::ranks>(kRanks),
                        base::fields<&T::text>(base::Rule{.longest = 255, .cut = true}));
}

/// Sends one packet; false if the other side is gone. The queue has room for the few of a rendezvous.
bool send(int socket, const JoinMessage& message, int file = -1);

enum class Received : std::uint8_t { message, nothing, closed, nonsense, no_descriptor };

/// Takes a packet if there is one, with the file that came along.
Received receive(int socket, JoinMessage& message, base::UniqueFd* file = nullptr);

}  // namespace ddp::collectives::shm
