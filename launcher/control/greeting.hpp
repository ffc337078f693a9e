// The bytes of the handshake: greetings, and the proofs that both sides know the same secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "control/handshake.hpp"

namespace ddp::launcher::control {

using Nonce = std::array<std::uint8_t, 32>;

/// On the wire: 8 bytes "ddpctl\r\n", the protocol version as 32 bits in network byte order, the nonce. It is the same
/// in all protocol versions, so that each side can name the other's.
struct Greeting {
  std::uint32_t version = kProtocolVersion;
  Nonce nonce{};

  /// Of our version, with a random nonce.
  static Greeting fresh();
  bool operator==(const Greeting&) const = default;
};

inline constexpr std::size_t kGreetingBytes = 8 + 4 + 32;
using GreetingBytes = std::array<std::byte, kGreetingBytes>;
GreetingBytes encode(const Greeting& greeting);

/// Nothing while @p received is only the beginning of a greeting. Throws Error(protocol) for what cannot become one.
std::optional<Greeting> parse_greeting(std::span<const std::byte> received);

enum class HandshakeSide : std::uint8_t { accepting, connecting };

/// What a side sends to authenticate. It covers the side, so that a proof cannot be reflected to its sender.
inline constexpr std::size_t kProofBytes = 32;
using Proof = std::array<std::byte, kProofBytes>;
Proof prove(const Secret& secret, HandshakeSide side, const Greeting& connecting, const Greeting& accepting);

/// Takes the same time for all wrong proofs.
bool proves(const Proof& proof, const Secret& secret, HandshakeSide side, const Greeting& connecting,
            const Greeting& accepting);

}  // namespace ddp::launcher::control
