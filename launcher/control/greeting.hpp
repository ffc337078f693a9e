// The first bytes of a control connection: who speaks which version, with which key, and how agents shall prove
// themselves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <ddp/bytes.hpp>

#include "control/secret.hpp"

namespace ddp::launcher::control {

/// X25519, made for one connection.
using PublicKey = std::array<std::uint8_t, 32>;

/// On the wire: 8 bytes "ddpctl\r\n", the protocol version as 32 bits in network byte order, the key. It is the same in
/// all protocol versions, so that each side can name the other's.
struct Greeting {
  std::uint32_t version = 0;
  PublicKey key{};

  bool operator==(const Greeting&) const = default;
};

inline constexpr std::size_t kGreetingBytes = 8 + 4 + 32;
using GreetingBytes = std::array<std::byte, kGreetingBytes>;
GreetingBytes encode(const Greeting& greeting);

/// Nothing while @p received is only the beginning of a greeting. Throws Error(protocol) for what cannot become one.
std::optional<Greeting> parse_greeting(std::span<const std::byte> received);

/// How both sides prove that they belong together.
enum class ProofMethod : std::uint8_t {
  job_secret = 1,  ///< a random secret that Slurm's channels carry
  phrase = 2,      ///< DDP_RDZV_SECRET
  munge = 3,       ///< credentials of the same user
  key_file = 4,    ///< the user's key file
  none = 5,        ///< --rdzv-insecure
};

/// What the accepting side sends behind its greeting: the method as one byte, and a salt.
struct Announcement {
  ProofMethod method = ProofMethod::job_secret;
  Salt salt{};  ///< of the phrase, random

  bool operator==(const Announcement&) const = default;
};

inline constexpr std::size_t kAnnouncementBytes = 1 + 16;
using AnnouncementBytes = std::array<std::byte, kAnnouncementBytes>;
AnnouncementBytes encode(const Announcement& announcement);
/// Throws Error(protocol) for an unknown method.
Announcement parse_announcement(const AnnouncementBytes& bytes);

enum class HandshakeSide : std::uint8_t { accepting, connecting };

/// All that a proof must cover, hashed (BLAKE2b): the side, so that a proof cannot be reflected to its sender, and what
/// both have sent, so that it is good for one connection and for the keys of it.
using Statement = std::array<std::byte, 32>;
Statement make_statement(HandshakeSide prover, const Greeting& connecting, const Greeting& accepting,
                         const Announcement& announcement);

/// A proof follows its length, 16 bits in network byte order. MUNGE credentials take some 200 bytes.
inline constexpr std::size_t kMaxProofBytes = 1024;
inline constexpr std::size_t kProofHeaderBytes = 2;
Bytes with_length(std::span<const std::byte> proof);
/// @param received at least the length. Throws Error(protocol) above kMaxProofBytes.
std::size_t proof_length(std::span<const std::byte> received);

}  // namespace ddp::launcher::control
