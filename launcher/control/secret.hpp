// A secret that several processes share, and wiped memory for it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace ddp::launcher::control {

/// 16 bytes, the size of crypto_pwhash's.
using Salt = std::array<std::uint8_t, 16>;

/// Before any other call of libsodium; every Secret comes through it. Throws Error(unavailable).
void ensure_sodium();

/// 32 bytes, wiped on destruction.
class Secret {
 public:
  static Secret random();
  /// Of what a user has thought up: Argon2id, so that each guess costs about 0.1 s and 64 MiB. Throws Error(system)
  /// when there is no memory for it.
  static Secret from_phrase(const std::string& phrase, const Salt& salt);
  static Secret from_hex(const std::string& hex);  ///< throws Error(invalid_argument)
  std::string to_hex() const;
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  Secret() = default;
  std::array<std::uint8_t, 32> bytes_{};
};

}  // namespace ddp::launcher::control
