// The admission request, by which a task has its address admitted, as bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::store_server {

/// The first byte, far above the operation numbers with which c10d requests begin.
inline constexpr std::uint8_t kAdmissionByte = 0xDD;
/// The second byte.
inline constexpr std::uint8_t kAdmissionVersion = 1;
/// The answer to a valid request. The server closes the connection of an invalid one without an answer.
inline constexpr std::uint8_t kAdmissionGranted = 1;
inline constexpr std::size_t kAdmissionSecretBytes = 32;
inline constexpr std::size_t kAdmissionMessageBytes = 2 + kAdmissionSecretBytes;

/// kAdmissionByte, kAdmissionVersion, the secret.
using AdmissionMessage = std::array<std::uint8_t, kAdmissionMessageBytes>;

/// @param secret 64 hexadecimal digits. Throws Error(invalid_argument), which does not show it, for anything else.
AdmissionMessage admission_message(std::string_view secret);

/// Reads an admission request that arrives in pieces.
class AdmissionReader {
 public:
  enum class Verdict { incomplete, valid, invalid };

  /// The most that may be read from the client before the verdict.
  std::size_t missing_bytes() const { return kAdmissionMessageBytes - size_; }
  /// Takes the next bytes, at most missing_bytes(). Compares the secret with that of @p expected in constant time.
  Verdict feed(std::string_view bytes, const AdmissionMessage& expected);

 private:
  AdmissionMessage bytes_{};
  std::size_t size_ = 0;
};

}  // namespace ddp::store_server
