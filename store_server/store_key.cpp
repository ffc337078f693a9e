#include "store_server/store_key.hpp"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"

namespace ddp::store_server {
namespace {

/// 16 for anything but a hexadecimal digit.
unsigned digit_value(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a') + 10;
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A') + 10;
  return 16;
}

}  // namespace

std::array<std::uint8_t, 32> random_bytes() {
  std::array<std::uint8_t, 32> bytes{};
  ssize_t count = -1;
  do {
    count = ::getrandom(bytes.data(), bytes.size(), 0);  // never partial up to 256 bytes
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(bytes.size())) {
    throw base::system_error("making the secret of the TCPStore server", count < 0 ? errno : EIO);
  }
  return bytes;
}

StoreKey StoreKey::make() {
  StoreKey key;
  key.bytes_ = random_bytes();
  return key;
}

StoreKey StoreKey::parse(std::string_view text) {
  StoreKey key;
  bool valid = text.size() == 2 * kBytes;
  for (std::size_t i = 0; valid && i < kBytes; ++i) {
    const unsigned high = digit_value(text[2 * i]);
    const unsigned low = digit_value(text[2 * i + 1]);
    valid = high < 16 && low < 16;
    key.bytes_[i] = static_cast<std::uint8_t>((high << 4) | (low & 15));
  }
  if (!valid) {
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = "reading the secret of the TCPStore server",
         .cause = fmt::format("it is not {} hexadecimal digits (it has {} characters)", 2 * kBytes, text.size())}};
  }
  return key;
}

std::string StoreKey::text() const {
  std::string text;
  for (const std::uint8_t byte : bytes_) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace ddp::store_server
