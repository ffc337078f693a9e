// The frames of the peer channel: one request and one answer per connection, both little-endian.
//   request: u32 magic, 16-byte token, u32 payload size, payload = text service, blob body
//   answer:  u32 magic, u8 status, u32 payload size, payload
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "world/endpoint_record.hpp"

namespace ddp::world {

enum class PeerStatus : std::uint8_t {
  ok = 0,
  unknown_service = 1,
  failed = 2,
  busy = 3,  ///< it has no room for the question: alive; said to anyone, also before the token is known
};

struct PeerRequest {
  ChannelToken token{};
  std::string service;
  Bytes body{};
};

struct PeerAnswer {
  PeerStatus status = PeerStatus::ok;
  Bytes body{};
};

/// Larger messages are refused by both sides.
inline constexpr std::uint32_t kLargestPeerMessageBytes = 1U << 20U;

Bytes encode(const PeerRequest& request);
Bytes encode(const PeerAnswer& answer);

/// What of a request comes before its payload, and so has to be believed to read on.
inline constexpr std::size_t kPeerRequestHeaderBytes = 4 + sizeof(ChannelToken) + 4;

/// Of the first bytes of a request. Nothing while the header is incomplete. Throws Error(protocol) for a header that no
/// request has.
std::optional<ChannelToken> decode_peer_token(std::span<const std::byte> received);

/// Nothing while @p received is incomplete. Throws Error(protocol) for what cannot become a frame.
std::optional<PeerRequest> decode_peer_request(std::span<const std::byte> received);
std::optional<PeerAnswer> decode_peer_answer(std::span<const std::byte> received);

}  // namespace ddp::world
