// Writing and reading the small binary messages that ranks exchange: little-endian integers and length-prefixed
// strings.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

#include "base/errors.hpp"

namespace ddp::base {

/// Appends values to a byte vector.
class ByteWriter {
 public:
  template <std::integral Int>
  ByteWriter& integer(Int value) {
    auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(Int); ++i, bits >>= 8) bytes_.push_back(static_cast<std::byte>(bits & 0xffU));
    return *this;
  }
  // Inlined behind integer(), GCC 12 warns at -O3 of an overflow that cannot be.
  [[gnu::noinline]] ByteWriter& raw(std::span<const std::byte> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    return *this;
  }
  ByteWriter& blob(std::span<const std::byte> data) {
    if (data.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw_invalid_argument("sending a message",
                             "a part of it has " + std::to_string(data.size()) + " bytes, more than 4 GiB", {});
    }
    return integer(static_cast<std::uint32_t>(data.size())).raw(data);
  }
  ByteWriter& text(std::string_view value) { return blob(std::as_bytes(std::span{value.data(), value.size()})); }

  const Bytes& bytes() const& { return bytes_; }
  Bytes bytes() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Takes values off a byte span, which must outlive the reader. Throws Error(protocol) where the bytes end too early;
/// never reads past the end and never allocates more than the span holds.
class ByteReader {
 public:
  /// @param what names the message in errors, for example "endpoint record".
  ByteReader(std::span<const std::byte> data, std::string_view what) : data_(data), what_(what) {}

  template <std::integral Int>
  Int integer() {
    const auto field = take(sizeof(Int));
    std::uint64_t bits = 0;
    for (std::size_t i = sizeof(Int); i-- > 0;) bits = (bits << 8) | std::to_integer<std::uint64_t>(field[i]);
    return static_cast<Int>(bits);
  }
  std::span<const std::byte> raw(std::size_t size) { return take(size); }
  std::span<const std::byte> blob() { return take(integer<std::uint32_t>()); }
  std::string text() {
    const auto field = blob();
    return {reinterpret_cast<const char*>(field.data()), field.size()};
  }
  std::size_t left() const { return data_.size(); }

  /// Throws unless everything has been read.
  void expect_end() const {
    if (!data_.empty()) refuse("the message has " + std::to_string(data_.size()) + " bytes too many");
  }

  /// Throws the error of bytes that are not such a message.
  [[noreturn]] void refuse(std::string cause) const {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading the " + std::string(what_),
                 .cause = std::move(cause),
                 .hint = "do all ranks run the same version of libddp?"}};
  }

 private:
  std::span<const std::byte> take(std::size_t size) {
    if (size > data_.size()) {
      refuse("the message ends after " + std::to_string(data_.size()) + " bytes where " + std::to_string(size) +
             " are needed");
    }
    const auto field = data_.first(size);
    data_ = data_.subspan(size);
    return field;
  }

  std::span<const std::byte> data_;
  std::string_view what_;
};

/// The bytes of a string, and back.
inline Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text.data(), text.size()});
  return {bytes.begin(), bytes.end()};
}
inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// FNV-1a, 64 bits (draft-eastlake-fnv): equal on all machines, but no protection against intent.

class Fnv1a {
 public:
  Fnv1a& add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) hash_ = (hash_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3U;
    return *this;
  }
  Fnv1a& add(std::string_view text) noexcept { return add(std::as_bytes(std::span{text})); }
  /// As eight bytes, the lowest first.
  Fnv1a& add(std::uint64_t value) noexcept {
    for (int i = 0; i < 8; ++i, value >>= 8U) hash_ = (hash_ ^ (value & 0xffU)) * 0x100000001b3U;
    return *this;
  }
  std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

}  // namespace ddp::base
