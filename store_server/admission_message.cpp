#include "store_server/admission_message.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::store_server {
namespace {

/// 16 for anything but a hexadecimal digit.
unsigned digit_value(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a') + 10;
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A') + 10;
  return 16;
}

/// Reads all bytes, so that its duration does not reveal how much of a guess was right.
bool equal_in_constant_time(const AdmissionMessage& a, const AdmissionMessage& b) {
  volatile std::uint8_t difference = 0;  // volatile: the compiler may not stop early
  for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace

AdmissionMessage admission_message(std::string_view secret) {
  AdmissionMessage message{kAdmissionByte, kAdmissionVersion};
  bool valid = secret.size() == 2 * kAdmissionSecretBytes;
  for (std::size_t i = 0; valid && i < kAdmissionSecretBytes; ++i) {
    const unsigned high = digit_value(secret[2 * i]);
    const unsigned low = digit_value(secret[2 * i + 1]);
    valid = high < 16 && low < 16;
    message[2 + i] = static_cast<std::uint8_t>((high << 4) | (low & 15));
  }
  if (!valid) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading the secret of the TCPStore server",
                 .cause = fmt::format("it is not {} hexadecimal digits (it has {} characters)",
                                      2 * kAdmissionSecretBytes, secret.size()),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return message;
}

AdmissionReader::Verdict AdmissionReader::feed(std::string_view bytes, const AdmissionMessage& expected) {
  bytes = bytes.substr(0, missing_bytes());
  std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += bytes.size();
  // The two bytes before the secret are public.
  if (!std::equal(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(size_, 2)),
                  expected.begin())) {
    return Verdict::invalid;
  }
  if (size_ < kAdmissionMessageBytes) return Verdict::incomplete;
  return equal_in_constant_time(bytes_, expected) ? Verdict::valid : Verdict::invalid;
}

}  // namespace ddp::store_server
