// FNV-1a, 64 bits (draft-eastlake-fnv): equal on all machines, but no protection against intent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ddp::base {

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
