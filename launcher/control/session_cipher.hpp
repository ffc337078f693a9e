// Encryption of a control connection: keys that exist for one connection only, and messages that nobody between can
// read, change, drop or repeat unnoticed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ddp/bytes.hpp>

#include "control/greeting.hpp"

namespace ddp::launcher::control {

/// ChaCha20-Poly1305 with a key for each direction, and the number of the message as its nonce: messages must be opened
/// in the order in which they were sealed. Wiped on destruction.
class SessionCipher {
 public:
  using Key = std::array<std::uint8_t, 32>;
  static constexpr std::size_t kOverheadBytes = 16;

  SessionCipher(const Key& receiving, const Key& sending) : receiving_(receiving), sending_(sending) {}
  SessionCipher(const SessionCipher&) = default;
  SessionCipher& operator=(const SessionCipher&) = default;
  ~SessionCipher();

  /// kOverheadBytes longer than @p plain.
  Bytes seal(std::span<const std::byte> plain);
  /// Throws Error(protocol) for anything but the next message of the other side.
  Bytes open(std::span<const std::byte> sealed);

 private:
  Key receiving_;
  Key sending_;
  std::uint64_t received_ = 0;
  std::uint64_t sent_ = 0;
};

/// This side's X25519 key of one connection. Wiped on destruction.
class EphemeralKey {
 public:
  EphemeralKey();
  EphemeralKey(const EphemeralKey&) = default;
  EphemeralKey& operator=(const EphemeralKey&) = default;
  ~EphemeralKey();

  const PublicKey& public_key() const { return public_; }
  /// Throws Error(protocol) for a key that makes no secret.
  SessionCipher agree(HandshakeSide own_side, const PublicKey& theirs) const;

 private:
  PublicKey public_{};
  std::array<std::uint8_t, 32> secret_{};
};

}  // namespace ddp::launcher::control
