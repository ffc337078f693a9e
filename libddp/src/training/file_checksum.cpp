#include "training/file_checksum.hpp"

#include <sodium/core.h>

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

namespace ddp::training {
namespace {

constexpr std::size_t kChecksumBytes = FileChecksum::kDigits / 2;

}  // namespace

FileChecksum::FileChecksum() {
  if (::sodium_init() < 0) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "computing a checksum",
                 .cause = "libsodium cannot be initialised",
                 .native = "sodium_init -1",
                 .hint = "it needs random numbers from the kernel: getrandom(2) or /dev/urandom"}};
  }
  ::crypto_generichash_init(&state_, nullptr, 0, kChecksumBytes);
}

FileChecksum& FileChecksum::add(std::string_view bytes) {
  ::crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return *this;
}

std::string FileChecksum::digits() {
  std::array<unsigned char, kChecksumBytes> value{};
  ::crypto_generichash_final(&state_, value.data(), value.size());
  return fmt::format("{:02x}", fmt::join(value, ""));
}

}  // namespace ddp::training
