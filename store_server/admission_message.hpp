// What a task sends to have the address that it comes from admitted: the "admission request", as bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::store_server {

/// The first byte. The requests of c10d clients begin with an operation's number, which is far below.
inline constexpr std::uint8_t kAdmissionByte = 0xDD;
/// The second byte.
inline constexpr std::uint8_t kAdmissionVersion = 1;
/// What the server answers to a right admission request. A wrong one gets no answer but the end of the connection.
inline constexpr std::uint8_t kAdmissionGranted = 1;
inline constexpr std::size_t kAdmissionSecretBytes = 32;
inline constexpr std::size_t kAdmissionMessageBytes = 2 + kAdmissionSecretBytes;

/// kAdmissionByte, kAdmissionVersion, the secret.
using AdmissionMessage = std::array<std::uint8_t, kAdmissionMessageBytes>;

/// @param secret as 64 hexadecimal digits. Throws Error(invalid_argument), which does not show it, for anything else.
AdmissionMessage admission_message(std::string_view secret);

/// An admission request that arrives in pieces.
class AdmissionReader {
 public:
  enum class Verdict { incomplete, right, wrong };

  /// What may be read from the client before there is a verdict.
  std::size_t missing_bytes() const { return kAdmissionMessageBytes - size_; }
  /// Takes the next bytes, missing_bytes() at most. Takes the same time wherever the secret differs from that of
  /// @p right.
  Verdict feed(std::string_view bytes, const AdmissionMessage& right);

 private:
  AdmissionMessage bytes_{};
  std::size_t size_ = 0;
};

}  // namespace ddp::store_server
