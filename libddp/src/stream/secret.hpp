// What both ends of a connection know: secrets that several processes share, and keys made for one connection. Memory
// is wiped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

namespace ddp::stream {

/// 16 bytes, the size of crypto_pwhash's.
using Salt = std::array<std::uint8_t, 16>;
/// X25519, made for one connection.
using PublicKey = std::array<std::uint8_t, 32>;

enum class HandshakeSide : std::uint8_t { accepting, connecting };

/// Before any other call of libsodium; every Secret comes through it. Thread-safe. Throws Error(unavailable).
void ensure_sodium();
/// Random bytes that nobody else has got.
PublicKey random_bytes();

/// 32 bytes, wiped on destruction.
class Secret {
 public:
  static Secret random();
  static Secret of(std::span<const std::uint8_t, 32> bytes);
  /// Of what a user has thought up: Argon2id, so that each guess costs about 0.1 s and 64 MiB. Throws Error(system)
  /// when there is no memory for it.
  static Secret from_phrase(const std::string& phrase, const Salt& salt);
  static Secret from_hex(const std::string& hex);  ///< throws Error(invalid_argument)
  std::string to_hex() const;
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  std::span<const std::uint8_t, 32> bytes() const { return bytes_; }

 private:
  Secret() = default;
  std::array<std::uint8_t, 32> bytes_{};
};

/// Messages that nobody between can read, change, drop or repeat unnoticed: ChaCha20-Poly1305 with a key for each
/// direction, and the number of the message as its nonce. They must be opened in the order in which they were sealed.
/// Wiped on destruction.
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

}  // namespace ddp::stream
