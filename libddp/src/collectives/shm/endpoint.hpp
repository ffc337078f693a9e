// A rank's socket for those with whom it may share memory. It exists before any of them is known.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ddp/error.hpp>

#include "base/message_fields.hpp"
#include "base/unique_fd.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

// ---- What a rank says about itself so that others can share memory with it: where and when they can, how they reach
// its socket, and what they prove to it.

using Secret = std::array<std::byte, 16>;

struct EndpointAddress {
  Secret boot_id{};                     ///< of the running kernel
  std::uint64_t network_namespace = 0;  ///< inode: abstract sockets are reached within one only
  std::uint32_t user = 0;               ///< effective uid
  Secret name{};                        ///< of the socket, in the abstract namespace
  Secret token{};                       ///< proves to the leader that somebody belongs to the group
  Secret proof{};                       ///< proves the leader to the others
  std::string refusal;                  ///< why this rank cannot share memory at all; empty if it can,
                                        ///< truncated to 200 bytes when it is sent
};
constexpr auto description(const EndpointAddress*) {
  using T = EndpointAddress;
  return base::describe({"rank's address for shared memory", 2},
                        base::fields<&T::boot_id, &T::network_namespace, &T::user, &T::name, &T::token, &T::proof>(),
                        base::fields<&T::refusal>(base::Rule{.longest = 200, .cut = true}));
}

/// Why ranks with these addresses cannot share memory; empty if they can.
std::string why_not_shared(const EndpointAddress& a, const EndpointAddress& b);

class Endpoint {
 public:
  /// Listens; what prevents it becomes the address's refusal.
  Endpoint();

  const EndpointAddress& address() const { return address_; }
  /// -1 if this rank cannot share memory.
  int listener() const { return listener_.get(); }
  void stop_listening() { listener_.reset(); }

 private:
  EndpointAddress address_;
  base::UnsharedFd listener_;
};

/// A connection to the rank with this address, not blocking; none if there is no room in its queue now. Throws Error:
/// peer_lost if nobody listens there, system.
base::UniqueFd connect_to(const EndpointAddress& address);

/// Whether the process at the other end belongs to this process's user.
bool same_user(int socket);

// Packets between the leader of a group and its other ranks over its socket while they join, with the file that goes
// along with one.

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
